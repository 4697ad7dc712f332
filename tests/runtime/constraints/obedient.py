"""Scripted devices that take masks: what they say by themselves must follow the grammar."""

import pytest

from tests.runtime.scripted_device import ScriptedDevice


def take_masks(patch: pytest.MonkeyPatch) -> None:
    """Let scripted devices take masked rounds; a token that its mask forbids is still found at settle."""
    check = ScriptedDevice._check_lanes

    def check_unmasked(device: ScriptedDevice, pair) -> None:
        pair.arguments.masked[:] = False
        check(device, pair)

    patch.setattr(ScriptedDevice, "_check_lanes", check_unmasked)
