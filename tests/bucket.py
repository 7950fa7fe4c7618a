"""A server of S3 on this machine, with one bucket: moto's, which verifies each request's signature."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import trustme

NAME = "pulumi-state"
PATIENCE = 60
ASKED_UNSIGNED = 4
"""The requests that make the user and the bucket's keys; each later one has to be signed."""
MAY_ALL = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}


@dataclass(frozen=True)
class Bucket:
    """The bucket as a client sees it. address: of the server, https; ca: a file with its CA's certificate."""

    address: str
    ca: Path
    key: str
    secret: str

    @property
    def url(self) -> str:
        """The backend, as Pulumi takes it."""
        return f"s3://{NAME}?endpoint={self.address}&region=us-east-1&s3ForcePathStyle=true"

    def client(self, service: str) -> Any:
        """boto3's client of a service, with the bucket's keys."""
        return boto3.client(
            service,
            endpoint_url=self.address,
            region_name="us-east-1",
            verify=str(self.ca),
            aws_access_key_id=self.key,
            aws_secret_access_key=self.secret,
        )

    def objects(self) -> dict[str, bytes]:
        """All that is in the bucket."""
        store = self.client("s3")
        found = store.list_objects_v2(Bucket=NAME).get("Contents", [])
        return {one["Key"]: store.get_object(Bucket=NAME, Key=one["Key"])["Body"].read() for one in found}


@contextmanager
def running(folder: Path) -> Iterator[Bucket]:
    """The server, for as long as the block takes; its files are in a folder that is made."""
    folder.mkdir()
    authority = trustme.CA()
    ca, certificate, key, log = (folder / name for name in ("ca.pem", "certificate.pem", "key.pem", "log"))
    authority.cert_pem.write_to_path(ca)
    issued = authority.issue_cert("127.0.0.1")
    certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(key)
    argv = [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", "0"]
    argv += ["--ssl-cert", str(certificate), "--ssl-key", str(key)]
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            argv,
            env={**os.environ, "INITIAL_NO_AUTH_ACTION_COUNT": str(ASKED_UNSIGNED)},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
    try:
        yield _prepared(Bucket(_address(log, process), ca, "nobody", "nothing"))
    finally:
        process.terminate()
        process.wait(PATIENCE)


def _address(log: Path, process: subprocess.Popen[bytes]) -> str:
    """Where the server says that it listens."""
    end = time.monotonic() + PATIENCE
    while not (found := re.search(r"Running on (https://127\.0\.0\.1:\d+)", log.read_text())):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.05)
    return found[1]


def _prepared(server: Bucket) -> Bucket:
    """The bucket, and a user that may use it."""
    accounts = server.client("iam")
    accounts.create_user(UserName="pulumi")
    accounts.put_user_policy(UserName="pulumi", PolicyName="state", PolicyDocument=json.dumps(MAY_ALL))
    made = accounts.create_access_key(UserName="pulumi")["AccessKey"]
    server.client("s3").create_bucket(Bucket=NAME)
    return Bucket(server.address, server.ca, made["AccessKeyId"], made["SecretAccessKey"])
