"""The pseudo-terminal of the tests: input arrives, output is read, and Ctrl-C is a signal."""

from tests.kit.cli.terminal import terminal_program

ECHO = "import sys\nfor line in sys.stdin: print('\\x1b[1mgot\\x1b[0m', line.strip())"
WAIT = "import sys\nprint('ready', flush=True)\nsys.stdin.read()"


def test_typed_text_arrives_and_output_is_read_without_colours() -> None:
    with terminal_program("-c", ECHO) as program:
        program.type("one\n")
        assert program.wait_for("got one\n").endswith("got one\n")
        program.type("two\n")
        assert "one" not in program.wait_for("got two\n")
        program.type("\x04")
        assert program.wait_exit() == 0


def test_ctrl_c_interrupts_the_program() -> None:
    with terminal_program("-c", WAIT) as program:
        program.wait_for("ready")
        program.press_ctrl_c()
        program.wait_for("KeyboardInterrupt")
        assert program.wait_exit() != 0
