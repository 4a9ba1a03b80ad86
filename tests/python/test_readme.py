"""The programs of client/python/README.md."""
import re
import sys

from ranks import BUILD, ROOT, finish

TEXT = (ROOT / "client/python/README.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def test_first_program(daemons, tmp_path):
    """The first program prints what the page says."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAMS[0])
    process = daemons.start([sys.executable, "-B", "-m", "commd.run", "-n", 4, program], COMMD_COMMCTL=str(BUILD / "commctl"))
    assert finish(process)[1].strip() in TEXT


def test_all_programs_are_python():
    """The other blocks are parts of programs. They compile."""
    assert len(PROGRAMS) >= 7
    for number, text in enumerate(PROGRAMS):
        compile(text, f"program {number + 1}", "exec")


def test_names_exist():
    """All names that the page uses exist."""
    import commd
    for name in re.findall(r"commd\.([A-Za-z_]+)\b", "\n".join(PROGRAMS)):
        assert hasattr(commd, name), name
    for name in re.findall(r"comm\.([a-z_]+)\(", "\n".join(PROGRAMS)):
        assert hasattr(commd.Communicator, name), name
    for name in re.findall(r"^\| `([A-Z][A-Za-z]+)`", TEXT, re.MULTILINE):
        assert issubclass(getattr(commd, name), commd.Error), name
