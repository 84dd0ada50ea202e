"""What an operator asks and orders, apart from how it is asked: the command line, the slash
command and the terminal UI share it."""
