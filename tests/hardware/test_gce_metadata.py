import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from autostrategy.hardware import gce_metadata

ATTRIBUTES = "/computeMetadata/v1/instance/attributes/"


class Metadata(BaseHTTPRequestHandler):
    """A machine with one attribute, which only who asks as Google wants may read."""

    def do_GET(self):
        known = self.path == f"{ATTRIBUTES}accelerator-type"
        self.send_response(200 if known and self.headers["Metadata-Flavor"] == "Google" else 404)
        self.end_headers()
        self.wfile.write(b"v4-16" if known else b"not found")

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with HTTPServer(("127.0.0.1", 0), Metadata) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield {"GCE_METADATA_HOST": f"127.0.0.1:{server.server_port}"}
        server.shutdown()
        thread.join()


def test_an_attribute_is_read_past_any_proxy(server, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")

    assert gce_metadata.attribute(server, "accelerator-type") == "v4-16"


def test_an_attribute_that_the_machine_does_not_have_is_none(server):
    assert gce_metadata.attribute(server, "worker-network-endpoints") is None


@pytest.mark.parametrize("host", ["127.0.0.1:1", "no port:x", "[", "127.0.0.1:99999"])
def test_where_nobody_answers_there_is_nothing(host):
    assert gce_metadata.attribute({"GCE_METADATA_IP": host}, "accelerator-type") is None


def test_it_is_not_asked_when_told_so(server):
    env = {**server, "TPU_SKIP_MDS_QUERY": "1"}

    assert gce_metadata.attribute(env, "accelerator-type") is None
