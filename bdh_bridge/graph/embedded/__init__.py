"""The embedded graph server: a Markdown vault that answers the BDH graph API.

It makes the first command work on a bare machine and gives tests a real graph. The HTTP
contract, the scores and the learning rules are those of the BDH graph harness, so the two can
stand in for each other behind ``BDH_API_URL``. What differs is said in
``docs/embedded-graph.md``.

Everything here needs the extra ``embedded``; nothing here is imported by the plugin.
"""
