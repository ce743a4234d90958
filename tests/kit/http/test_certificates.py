"""The authority of a test makes files that belong together, and renews them on request."""

import ssl
from pathlib import Path

from tests.kit.http.certificates import Certificates


def test_the_files_belong_together_before_and_after_a_renewal(tmp_path: Path) -> None:
    made = Certificates(tmp_path)
    first = made.certificate.read_bytes()
    for _ in range(2):
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(made.certificate, made.key)
        made.renew()
    assert made.certificate.read_bytes() != first


def test_a_client_trusts_only_this_authority(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    own, other = Certificates(tmp_path).client_context(), Certificates(tmp_path / "other").client_context()
    assert own.get_ca_certs(True)[-1:] != other.get_ca_certs(True)[-1:]
