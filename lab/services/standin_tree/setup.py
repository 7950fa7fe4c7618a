"""Refuses to build a wheel or a source archive, as upstream does from 0.20 on.

A wheel has no skills, plugins' manifests, locales or web interface: a checkout is what is supported. An editable
installation builds neither, so ``uv sync`` works. Nix builds a wheel and says so by its variable.
"""

import os

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.sdist import sdist

REFUSAL = (
    "hermes-agent is not built as a wheel or source archive: what it needs at run time would be missing.\n"
    "Install a checkout instead: uv sync"
)


class NoWheel(bdist_wheel):
    def run(self):
        if os.environ.get("HERMES_NIX_BUILD") != "1":
            raise RuntimeError(REFUSAL)
        super().run()


class NoArchive(sdist):
    def run(self):
        if os.environ.get("HERMES_NIX_BUILD") != "1":
            raise RuntimeError(REFUSAL)
        super().run()


setup(cmdclass={"bdist_wheel": NoWheel, "sdist": NoArchive})
