"""Creates, uses and deletes a disk with the client that is generated from docs/openapi.json.

    client.py URL AUTHORITY.pem USER.pem

It needs the package `scree_client` in PYTHONPATH. Every answer must have the type in
the description, refusals included.
"""

import ssl
import sys
import time
from datetime import datetime, timezone

from scree_client import Client
from scree_client.api.attachments import create_attachment, delete_attachment, list_attachments
from scree_client.api.chains import read_events
from scree_client.api.identity import me
from scree_client.api.snapshots import create_snapshot, delete_snapshot, show_snapshot
from scree_client.api.volumes import (
    create_volume,
    delete_volume,
    list_volumes,
    show_volume,
    tag_volume,
)
from scree_client.models import (
    Attachment,
    AttachmentState,
    CreateAttachment,
    CreateSnapshot,
    CreateVolume,
    Encryption,
    PageAttachment,
    PageListedVolume,
    Party,
    PartyKind,
    Problem,
    ProblemCode,
    SetTags,
    Snapshot,
    SnapshotState,
    Tags,
    Volume,
    VolumeState,
)

SIZE = 64 << 20
WAIT_S = 60


def expect(kind, response, *statuses):
    """The parsed answer, if it is of that type and has one of those statuses."""
    status, parsed = int(response.status_code), response.parsed
    assert status in statuses, f"{status} and not {statuses}: {response.content!r}"
    assert type(parsed) is kind, f"{type(parsed)} and not {kind}: {response.content!r}"
    return parsed


def until_deleted(client, volume):
    """Waits until a volume does not exist: a typed problem document says so."""
    end = time.monotonic() + WAIT_S
    while True:
        response = show_volume.sync_detailed(volume.id, client=client)
        if response.status_code == 404:
            problem = expect(Problem, response, 404)
            assert problem.code is ProblemCode.NOT_FOUND, problem
            assert problem.status == 404 and problem.type_ == "urn:scree:problem:not_found"
            return problem
        assert expect(Volume, response, 200).state is VolumeState.DELETING, response.content
        assert time.monotonic() < end, f"{volume.id} is still there after {WAIT_S} s"
        time.sleep(0.1)


def main(url, authority, user):
    tls = ssl.create_default_context(cafile=authority)
    tls.minimum_version = ssl.TLSVersion.TLSv1_3
    tls.load_cert_chain(user)
    # Longer than the longest wait, so that it is the server that answers.
    client = Client(base_url=url, verify_ssl=tls, timeout=WAIT_S + 30)
    with client:
        who = expect(Party, me.sync_detailed(client=client), 200)
        assert who.kind is PartyKind.USER and not who.administrator, who

        new = CreateVolume(name="typed", size=SIZE, replicas=2, tags=Tags.from_dict({"by": "test"}))
        tried = create_volume.sync_detailed(client=client, body=new, dry_run=True)
        expect(Volume, tried, 201)
        made = [
            expect(Volume, create_volume.sync_detailed(client=client, body=new, idempotency_key="typed-1"), 201)
            for _ in range(2)
        ]
        disk = made[0]
        assert made[1].id == disk.id, "the same key made it twice"
        assert disk.state is VolumeState.AVAILABLE and disk.encryption is Encryption.AES_256_GCM, disk
        assert disk.size == SIZE and disk.owner == who.name and disk.tags["by"] == "test", disk
        age = (datetime.now(timezone.utc) - disk.created).total_seconds()
        assert abs(age) < 300, disk.created
        taken = create_volume.sync_detailed(client=client, body=new)
        assert expect(Problem, taken, 409).code is ProblemCode.ALREADY_EXISTS, taken
        bad = CreateVolume(name="Not A Name", size=SIZE)
        problem = expect(Problem, create_volume.sync_detailed(client=client, body=bad), 400)
        assert (problem.code, problem.field) == (ProblemCode.INVALID_ARGUMENT, "name"), problem

        taking = CreateSnapshot(volume=disk.id, name="typed-noon")
        snapshot = expect(Snapshot, create_snapshot.sync_detailed(client=client, body=taking, wait=WAIT_S), 201)
        shown = show_snapshot.sync_detailed(snapshot.id, client=client, wait=WAIT_S)
        assert expect(Snapshot, shown, 200).state is SnapshotState.COMPLETED, shown
        cloning = CreateVolume(name="typed-clone", from_=snapshot.id)
        clone = expect(Volume, create_volume.sync_detailed(client=client, body=cloning), 201)
        assert clone.size == SIZE and clone.from_ == snapshot.id, clone
        tagging = SetTags(tags=Tags.from_dict({"by": "clone"}))
        expect(Volume, tag_volume.sync_detailed(clone.id, client=client, body=tagging), 200)
        filtered = list_volumes.sync_detailed(client=client, tag=["by=clone"], limit=10)
        page = expect(PageListedVolume, filtered, 200)
        assert [type(one) for one in page.items] == [Volume] and page.items[0].id == clone.id, page
        assert page.next_ is None, page

        attaching = CreateAttachment(volume=clone.id)
        attached = expect(Attachment, create_attachment.sync_detailed(client=client, body=attaching, wait=WAIT_S), 201)
        assert attached.state is AttachmentState.ATTACHED, attached
        assert attached.uri.startswith("nbd+unix://"), attached
        seen = expect(Volume, show_volume.sync_detailed(clone.id, client=client), 200)
        assert seen.state is VolumeState.IN_USE and seen.export.uri == attached.uri, seen
        held = list_attachments.sync_detailed(client=client, state=AttachmentState.ATTACHED)
        assert attached.id in [one.id for one in expect(PageAttachment, held, 200).items], held
        answer = read_events.sync_detailed(attached.id, client=client)
        assert expect(Problem, answer, 409).code is ProblemCode.CONFLICT, "it has no filters"
        detached = expect(Attachment, delete_attachment.sync_detailed(attached.id, client=client, wait=WAIT_S), 200)
        assert detached.state is AttachmentState.DETACHED and detached.ended, detached

        expect(Snapshot, delete_snapshot.sync_detailed(snapshot.id, client=client), 200)
        for volume in [clone, disk]:
            deleted = delete_volume.sync_detailed(volume.id, client=client)
            assert expect(Volume, deleted, 202).state is VolumeState.DELETING, deleted
            until_deleted(client, volume)
    print("A generated client made, snapshotted, cloned, attached and deleted a disk.")


if __name__ == "__main__":
    main(*sys.argv[1:])
