#!/usr/bin/env python3
"""The files that `make install` puts into a folder are enough for other builds, wherever that folder is. `make uninstall` removes them."""
import os
import pathlib
import pwd
import re
import shutil
import subprocess
import tempfile
import unittest

from cluster import BUILD, ROOT

SOURCE = '#include <commclient.h>\n#include <stdio.h>\nint main(void) { return printf("%s\\n", comm_result_text(COMM_OK)) < 0; }\n'
CMAKE_LISTS = """cmake_minimum_required(VERSION 3.16)
project(user C)
find_package(commclient {version} {strength})
if(commclient_FOUND)
    add_executable(shared user.c)
    target_link_libraries(shared commclient::commclient)
    add_executable(static user.c)
    target_link_libraries(static commclient::static)
endif()
"""


def run(*command, **options):
    return subprocess.run([str(each) for each in command], capture_output=True, text=True, timeout=120, **options)


# Another build folder's flags are not known here: make would build it anew.
@unittest.skipUnless(BUILD == ROOT / "build/release" or "MAKEFLAGS" in os.environ, "not the release build, and not run by make")
class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        holder = tempfile.TemporaryDirectory(prefix="commd-test-")
        cls.addClassCleanup(holder.cleanup)
        cls.folder = pathlib.Path(holder.name)
        done = cls.make("install", cls.folder / "first")
        assert done.returncode == 0, done.stdout + done.stderr
        (cls.folder / "first").rename(cls.folder / "moved")
        cls.top = cls.folder / "moved"
        cls.prefix = cls.top / "usr/local"
        (cls.folder / "user.c").write_text(SOURCE)

    @staticmethod
    def make(target, folder):
        # `make test` has said with which settings, in MAKEFLAGS.
        return run("make", "-C", ROOT, target, f"DESTDIR={folder}", "DEPS=check")

    def environment(self):
        return {**os.environ, "PKG_CONFIG_PATH": str(self.prefix / "lib/pkgconfig"), "LD_LIBRARY_PATH": str(self.prefix / "lib")}

    def test_pkg_config(self):
        for static in ((), ("--static",)):
            flags = run("pkg-config", "--cflags", "--libs", *static, "commclient", env=self.environment())
            self.assertEqual(flags.returncode, 0, flags.stderr)
            self.assertIn(str(self.folder), flags.stdout)
            built = run("cc", self.folder / "user.c", "-o", self.folder / "user", *flags.stdout.split())
            self.assertEqual(built.returncode, 0, built.stderr)
            self.assertEqual(run(self.folder / "user", env=self.environment()).returncode, 0)

    def cmake(self, version, strength="REQUIRED"):
        (self.folder / "CMakeLists.txt").write_text(CMAKE_LISTS.format(version=version, strength=strength))
        shutil.rmtree(self.folder / "built", ignore_errors=True)
        return run("cmake", "-S", self.folder, "-B", self.folder / "built", f"-DCMAKE_PREFIX_PATH={self.prefix}")

    @unittest.skipUnless(shutil.which("cmake"), "cmake is not installed")
    def test_cmake(self):
        version = re.search(r'TEXT "(\d+\.\d+)', (ROOT / "proto/version.h").read_text()).group(1)
        done = self.cmake(version)
        self.assertEqual(done.returncode, 0, done.stderr)
        built = run("cmake", "--build", self.folder / "built")
        self.assertEqual(built.returncode, 0, built.stdout + built.stderr)
        for program in ("shared", "static"):
            self.assertEqual(run(self.folder / "built" / program).returncode, 0)
        self.assertNotEqual(self.cmake("99.1").returncode, 0)

    def test_uninstall_takes_all_but_the_configuration(self):
        copy = self.folder / "copy"
        shutil.copytree(self.top, copy, symlinks=True)
        installed = {str(path.relative_to(copy)) for path in copy.rglob("*") if not path.is_dir()}
        self.assertLess({"usr/local/sbin/commd", "usr/local/share/bash-completion/completions/commctl", "usr/local/share/zsh/site-functions/_commctl",
                         "usr/local/share/fish/vendor_completions.d/commctl.fish", "usr/local/lib/cmake/commclient/commclient-config.cmake"}, installed)
        done = self.make("uninstall", copy)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([str(path.relative_to(copy)) for path in copy.rglob("*") if not path.is_dir()], ["etc/commd/commd.conf"])
        self.assertFalse((copy / "usr/local/lib/cmake/commclient").exists())


class Packages(unittest.TestCase):
    def test_the_package_is_built_with_what_the_project_is(self):
        script = (ROOT / "tests/lib/install-deps.sh").read_text()
        needed = set(re.search(r"^packages=\((.*?)\)", script, re.MULTILINE | re.DOTALL).group(1).split()) - {"libc6-dev", "make"}
        control = (ROOT / "systemd/debian/control").read_text()
        listed = re.search(r"^Build-Depends: (.*?)^[A-Z]", control, re.MULTILINE | re.DOTALL).group(1)
        named = {re.split(r"[ (:]", each.strip())[0] for each in listed.split(",")}
        self.assertEqual(needed - named, set(), "Build-Depends of systemd/debian/control lacks what tests/lib/install-deps.sh installs")

    def test_a_build_without_a_home(self):
        """Services and containers may have no HOME. Then it is the user's folder in /etc/passwd."""
        environment = {name: value for name, value in os.environ.items() if name not in ("HOME", "XDG_CACHE_HOME")}
        there, missing = (subprocess.run([ROOT / "tests/lib/install-deps.sh", "--check"], capture_output=True, text=True, env={**environment, **home})
                          for home in ({"HOME": pwd.getpwuid(os.getuid()).pw_dir}, {}))
        self.assertEqual((missing.returncode, missing.stdout, missing.stderr), (there.returncode, there.stdout, there.stderr))


if __name__ == "__main__":
    unittest.main()
