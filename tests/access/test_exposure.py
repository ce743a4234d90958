"""The addresses on which a server without keys can listen."""

import pytest

from tlserve.access.exposure import check_exposure, is_local
from tlserve.errors import SettingsError

LOCAL = ("127.0.0.1:8000", "127.8.9.10:1", "[::1]:8000", "unix:/run/tlserve.sock")
EXPOSED = ("0.0.0.0:8000", "[::]:8000", "192.0.2.1:80", "[fe80::1%eth0]:80", "[::ffff:192.0.2.1]:80")


@pytest.mark.spec("ACC-40", "ACC-56")
@pytest.mark.parametrize("address", LOCAL)
def test_a_local_address_needs_no_key(address: str) -> None:
    assert is_local(address)
    check_exposure([address], has_keys=False, allow_public=False)


@pytest.mark.spec("ACC-40", "ACC-56")
@pytest.mark.parametrize("address", EXPOSED)
def test_a_public_address_needs_a_key_or_allow_public(address: str) -> None:
    assert not is_local(address)
    with pytest.raises(SettingsError, match=r"access\.keys_file .*127\.0\.0\.1.*allow_public = true") as caught:
        check_exposure([LOCAL[0], address], has_keys=False, allow_public=False)
    assert caught.value.message.startswith(address)
    check_exposure([address], has_keys=True, allow_public=False)
    check_exposure([address], has_keys=False, allow_public=True)
