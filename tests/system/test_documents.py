#!/usr/bin/env python3
"""The programs in the documents compile without a warning, fail with a message if there is no commd, and work with one."""
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

from cluster import BUILD, Cluster

TOP = pathlib.Path(__file__).resolve().parents[2]
DOCUMENTS = ("README.md", "client/README.md")
WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Werror")


def programs():
    """Yields (document, number, source) for each block of C that is a whole program."""
    for document in DOCUMENTS:
        blocks = re.findall(r"^```c\n(.*?)^```$", (TOP / document).read_text(), re.MULTILINE | re.DOTALL)
        yield from ((document, number, block) for number, block in enumerate(blocks) if "int main(" in block)


class Documents(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(["a", "b"])
        cls.addClassCleanup(cls.cluster.close)
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)

    def compile(self, document, number, source):
        path = pathlib.Path(self.folder.name) / f"{document.replace('/', '-')}-{number}"
        path.with_suffix(".c").write_text(source)
        for language in ((), ("-x", "c++")):
            done = subprocess.run([os.environ.get("CC", "cc"), *language, *WARNINGS, "-I", TOP / "client/include", path.with_suffix(".c"), "-x", "none",
                                   f"-L{BUILD}", "-lcommclient", f"-Wl,-rpath,{BUILD}", "-o", path], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 0, f"{document}, program {number}: {done.stderr}")
            if not language:
                yield path

    def test_programs(self):
        found = 0
        for document, number, source in programs():
            found += 1
            for program in self.compile(document, number, source):
                alone = subprocess.run([program], capture_output=True, text=True, timeout=30, env={**os.environ, "COMMD_SOCKET": "/nonexistent/commd.sock"})
                self.assertEqual(alone.returncode, 1, f"{document}, program {number}, without commd: {alone.stdout}")
                self.assertIn("/nonexistent/commd.sock", alone.stderr)
                ranks = [self.cluster.client(node, "env", f"COMMD_RANK={rank}", "COMMD_SIZE=3", f"COMMD_JOB={program}", program) for rank, node in enumerate("aab")]
                for rank, process in enumerate(ranks):
                    output, errors = process.communicate(timeout=60)
                    self.assertEqual(process.returncode, 0, f"{document}, program {number}, rank {rank}: {output}{errors}")
                    self.assertIn(f"rank {rank}", output)
        self.assertGreaterEqual(found, 3)

    def test_examples_of_schedulers(self):
        """Scripts that a shell understands, and manifests that are YAML with what the README says of them."""
        for path in (TOP / "client/examples/slurm").glob("*.sh"):
            done = subprocess.run(["bash", "-n", path], capture_output=True, text=True, timeout=20)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertTrue(os.access(path, os.X_OK), path)
        try:
            import yaml
        except ImportError:
            self.skipTest("python3-yaml is not installed")
        for name, kind in (("daemonset", "DaemonSet"), ("job", "Job")):
            manifest = yaml.safe_load((TOP / f"client/examples/kubernetes/{name}.yaml").read_text())
            pod = manifest["spec"]["template"]["spec"]
            volumes = {volume["name"]: volume for volume in pod["volumes"]}
            mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
            self.assertEqual(manifest["kind"], kind)
            self.assertEqual(volumes.keys(), mounts.keys())
            folder = next(volume["hostPath"] for volume in volumes.values() if "hostPath" in volume)
            self.assertEqual(folder["path"], "/run/commd", "the folder, not the socket")
            self.assertTrue(pod["hostIPC"] and pod["hostPID"])
        service, pods = yaml.safe_load_all((TOP / "client/examples/kubernetes/statefulset.yaml").read_text())
        self.assertEqual((service["kind"], service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"]), ("Service", "None", True))
        self.assertEqual([(port["name"], port["protocol"]) for port in service["spec"]["ports"]], [("commd", "UDP")], "the records are _commd._udp")
        self.assertEqual((pods["kind"], pods["spec"]["serviceName"]), ("StatefulSet", service["metadata"]["name"]))

    def test_manifests_fit_the_schema_of_kubernetes(self):
        try:
            import kubernetes_validate
            import yaml
        except ImportError:
            self.skipTest("the Python package kubernetes-validate is not installed")
        for path in sorted((TOP / "client/examples/kubernetes").glob("*.yaml")):
            for manifest in yaml.safe_load_all(path.read_text()):
                kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)

    def test_lines_are_short(self):
        """Prose and code have at most 120 columns; tables may be wider."""
        for path in sorted(TOP.glob("**/*.md")):
            if "build" in path.relative_to(TOP).parts:
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if not line.startswith("|"):
                    self.assertLessEqual(len(line), 120, f"{path.relative_to(TOP)}:{number}")

    def test_architecture_names_what_exists(self):
        """All files and functions that the page about the architecture names exist."""
        text = (TOP / "daemon/README.md").read_text()
        sources = "\n".join(path.read_text() for folder in ("daemon", "client", "proto") for path in (TOP / folder).glob("**/*.[ch]"))
        names = re.findall(r"`([a-z_0-9]+)\(\)`", text)
        files = re.findall(r"`((?:daemon|client|proto|tests)/[a-z_0-9/]+(?:\.[ch])?)`", text)
        self.assertGreater(len(names), 15)
        self.assertGreater(len(files), 20)
        for name in names:
            self.assertIsNotNone(re.search(rf"(?m)^[a-z][a-z_0-9 *]*\b{name}\(", sources), f"{name}() is defined nowhere")
        for file in files:
            self.assertTrue((TOP / file).exists(), file)

    def test_tests_that_are_named_exist(self):
        """All tests that the page about tests names are in the files that it names, and run."""
        text = (TOP / "tests/README.md").read_text()
        rows = re.findall(r"`(tests/[a-z_0-9/]+\.(?:c|py))`: (`test_\w+`(?:, `test_\w+`)*)", text)
        self.assertGreater(len(rows), 15)
        for file, names in rows:
            source = (TOP / file).read_text()
            for name in re.findall(r"\w+", names):
                runs = rf"cmocka_unit_test(_setup_teardown)?\(\s*{name}\b" if file.endswith(".c") else rf"    def {name}\(self"
                self.assertRegex(source, runs, f"{file}: {name}")


if __name__ == "__main__":
    unittest.main()
