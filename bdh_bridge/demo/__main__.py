from __future__ import annotations

from bdh_bridge.demo.run import main

if __name__ == "__main__":
    raise SystemExit(main())
