"""Whether a wheel is what its RECORD says: every file is in it, with its size and digest, and no other is there."""
import base64
import csv
import hashlib
import io
import sys
import zipfile

wheel = zipfile.ZipFile(sys.argv[1])
files = {name: wheel.read(name) for name in wheel.namelist()}
[record] = [name for name in files if name.endswith(".dist-info/RECORD")]
rows = list(csv.reader(io.StringIO(files[record].decode())))
assert sorted(row[0] for row in rows) == sorted(files), "RECORD does not list what is in the wheel"
for name, digest, size in rows:
    if name == record:
        assert (digest, size) == ("", ""), "RECORD has a digest of itself"
        continue
    true = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=").decode()
    assert (digest, size) == ("sha256=" + true, str(len(files[name]))), f"{name}: RECORD says {digest}, {size}"
