"""Slurm on the two nodes: the package's job script as it is, its prolog with a shorter wait, and a program that a user has compiled."""
import os
import re

from machine import USERS

# Slurm does not check the number of processors in its configuration. Any device stands for a GPU, because the ranks use host memory.
CONFIGURATION = """ClusterName=commd
SlurmctldHost={controller}({address})
SlurmUser=slurm
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SelectType=select/cons_tres
GresTypes=gpu
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
Prolog=/etc/slurm/prolog.d/commd.sh
PrologFlags=Alloc
{nodes}
PartitionName=all Nodes=ALL Default=YES State=UP
"""
DEVICES = ("null", "zero", "full", "random")
RANKS = 8  # of the job script: 4 on each of 2 nodes
JOB_TIMEOUT_S = 120


def prepare(root):
    """Slurm must not start at boot: without a configuration, slurmd asks the network for one, which takes longer than the boot may."""
    for wants in (root / "etc/systemd/system").glob("*.wants/slurm*"):
        wants.unlink()


class Slurm:
    """containers: by name, each with its address. program: the source of a program that prints the sum of all ranks."""

    def __init__(self, containers, addresses, program):
        self.containers, self.controller = containers, next(iter(containers))
        rows = "\n".join(f"NodeName={name} NodeAddr={address} CPUs=16 Gres=gpu:4 State=UNKNOWN" for name, address in addresses.items())
        self.configuration = CONFIGURATION.format(controller=self.controller, address=addresses[self.controller], nodes=rows)
        self.program = program

    def start(self):
        for name, container in self.containers.items():
            container.path("/etc/munge/munge.key").write_bytes(b"k" * 1024)
            container.path("/etc/slurm/slurm.conf").write_text(self.configuration)
            container.path("/etc/slurm/gres.conf").write_text("".join(f"Name=gpu File=/dev/{device}\n" for device in DEVICES))
            container.path("/etc/slurm/cgroup.conf").write_text(f"CgroupPlugin={'disabled' if self.version(container) >= (23, 11) else 'cgroup/v1'}\n")
            container.shell("mkdir -p /etc/slurm/prolog.d /var/spool/slurmctld /var/spool/slurmd\n"
                            "sed 's/:-20}/:-1}/' $(find /usr/share/doc/*/examples/slurm -name prolog.sh) > /etc/slurm/prolog.d/commd.sh\n"
                            "chown slurm: /var/spool/slurmctld && chown munge: /etc/munge/munge.key && chmod 400 /etc/munge/munge.key && chmod 755 /etc/slurm/prolog.d/commd.sh\n"
                            "systemctl restart munge")
            if name == self.controller:
                container.shell("systemctl restart slurmctld")
        for container in self.containers.values():
            container.shell("systemctl restart slurmd")
        self.shell("for i in $(seq 100); do [ \"$(sinfo -h -o %t)\" = idle ] && exit; sleep 0.2; done; sinfo -R; sinfo; exit 1")

    @staticmethod
    def version(container):
        return tuple(int(number) for number in re.search(r"(\d+)\.(\d+)", container.shell("slurmd -V").stdout).groups())

    def shell(self, line, **options):
        return self.containers[self.controller].shell(line, **options)

    def run(self):
        """A job of two nodes ends well. Where commd does not run, none starts."""
        self.start()
        for container in self.containers.values():
            container.path("/home/alice/hello.c").write_text(self.program)
            os.chown(container.path("/home/alice/hello.c"), USERS["alice"], USERS["alice"])
            container.shell("cc hello.c -o hello $(pkg-config --cflags --libs commclient)", "/home/alice", user="alice")
        script = self.shell("find /usr/share/doc/*/examples/slurm -name job.sh").stdout.strip()
        done = self.shell(f"sbatch --wait --output=job.txt {script} ./hello", folder="/home/alice", user="alice", check=False, timeout_s=JOB_TIMEOUT_S)
        said = self.shell("cat job.txt", folder="/home/alice", check=False).stdout
        assert done.returncode == 0, f"{done.stdout}{done.stderr}{said}{self.shell('tail -5 /var/log/slurm*.log /var/log/slurm/*.log', check=False).stdout}"
        for rank in range(RANKS):
            assert f"rank {rank} of {RANKS}: the sum of all ranks is {RANKS * (RANKS - 1) // 2}" in said, said
        self.last_stops()
        return f"{RANKS} ranks on 2 nodes; a node without commd is drained"

    def last_stops(self):
        """commd ends on the last node: Slurm drains that node alone, and a job on the others runs."""
        name = list(self.containers)[-1]
        self.containers[name].shell("systemctl stop commd.socket commd.service")
        self.shell(f"timeout 20 srun --nodelist={name} --immediate=5 --time=1 true", user="alice", check=False, timeout_s=60)
        self.shell(f"for i in $(seq 200); do sinfo -h -N -o '%N %T' | grep '^{name} drain' && exit; sleep 0.2; done; sinfo -N -l; exit 1", timeout_s=60)
        said = self.shell("srun --time=1 hostname", folder="/home/alice", user="alice", timeout_s=60).stdout
        assert said.strip() == self.controller, said
