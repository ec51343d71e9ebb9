"""The view through Redis as people run it: sentinels, cluster, TLS, ACL users, password files, a socket."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from redis.crc import key_slot
from structlog.testing import capture_logs

from picker.agent.publisher import PublisherSettings
from picker.fleet.feed_settings import FeedSettings
from picker.fleet.sharing import Sharing
from picker.platform.orders import SECTIONS
from picker.redisview.cordons import CordonRecords
from picker.redisview.keys import Keys
from picker.redisview.platform import PlatformRecords
from picker.redisview.records import KvEvent, KvOp
from picker.redisview.settings import RedisConfig
from picker.redisview.spending import Spending
from picker.redisview.tokenizers import TokenizerStore
from picker.redisview.writer import WriterSettings
from tests.integration import redis_servers
from tests.integration.redis_servers import BINARIES, HOST, Server, Where, plain, running
from tests.integration.test_redis_view import Agent, Picker, Pool
from tests.waiting import until

PASSWORD = "s3cret-of-the-test"
each_server = pytest.mark.parametrize("binary", BINARIES, ids=lambda path: path.name)


@contextlib.asynccontextmanager
async def pool_at(where: str | RedisConfig, name: str = "pool") -> AsyncIterator[Pool]:
    async with Pool(Where(where), name) as pool:  # type: ignore[arg-type]
        yield pool


async def mirrored(pool: Pool) -> tuple[Agent, Picker]:
    agent, picker = await pool.agent(), await pool.picker()
    agent.store(range(1, 500))
    await until(lambda: picker.mirrors(agent))
    return agent, picker


@each_server
async def test_a_primary_that_dies_behind_sentinels_is_replaced_and_the_view_follows(
    binary: Path, tmp_path: Path
) -> None:
    async with redis_servers.sentinels(binary, tmp_path) as group, pool_at(group.url) as pool:
        agent, picker = await mirrored(pool)
        old = await group.primary()
        slot = picker.slot(agent)
        old.process.kill()
        agent.store(range(1000, 1100))
        await until(lambda: picker.mirrors(agent))
        assert picker.slot(agent) == slot
        assert (await group.primary()).port != old.port
        await old.start()
        agent.store(range(2000, 2100))
        await until(lambda: picker.mirrors(agent))


@each_server
async def test_a_primary_that_becomes_a_replica_and_stays_alive_is_left(binary: Path, tmp_path: Path) -> None:
    async with redis_servers.sentinels(binary, tmp_path) as group, pool_at(group.url) as pool:
        agent, picker = await mirrored(pool)
        old = await group.primary()
        await group.sentinels[0].ask("SENTINEL", "FAILOVER", "main")
        await redis_servers.until(lambda: _is_other(group, old))
        agent.store(range(1000, 1100))
        await until(lambda: picker.mirrors(agent))
        new = await group.primary()
        await redis_servers.until(lambda: new.ask("HEXISTS", pool.keys.load, agent.record.worker))
        agent.store(range(2000, 2100))
        await until(lambda: picker.mirrors(agent))


async def _is_other(group: redis_servers.Sentinels, old: Server) -> bool:
    return (await group.primary()).port != old.port


async def test_sentinels_may_be_gone_once_the_primary_is_known(tmp_path: Path) -> None:
    async with redis_servers.sentinels(BINARIES[0], tmp_path) as group, pool_at(group.url) as pool:
        agent, picker = await mirrored(pool)
        for sentinel in group.sentinels:
            sentinel.process.kill()
        # Longer than the time after which the primary is asked for again.
        await asyncio.sleep(5.5)
        agent.store(range(1000, 1100))
        await until(lambda: picker.mirrors(agent))
        assert picker.feed.connected


@each_server
async def test_a_pool_in_a_cluster_is_followed_when_its_slot_moves(binary: Path, tmp_path: Path) -> None:
    async with redis_servers.cluster(binary, tmp_path) as group, pool_at(group.url) as pool:
        agent, picker = await mirrored(pool)
        slot = key_slot(pool.keys.load.encode())
        source = await group.owner(slot)
        target = next(node for node in group.nodes if node is not source)
        await group.move(slot, target)
        agent.store(range(1000, 1100))
        await until(lambda: picker.mirrors(agent))
        assert await target.ask("HEXISTS", pool.keys.load, agent.record.worker)


async def test_pools_of_all_slots_work_and_none_depends_on_another_node(tmp_path: Path) -> None:
    async with redis_servers.cluster(BINARIES[0], tmp_path) as group, contextlib.AsyncExitStack() as exits:
        names = [f"pool{n}" for n in range(8)]
        pools = [await exits.enter_async_context(pool_at(group.url, name)) for name in names]
        pairs = [await mirrored(pool) for pool in pools]
        owners = [await group.owner(key_slot(Keys(name).load.encode())) for name in names]
        assert len({owner.port for owner in owners}) == 3
        dead = owners[0]
        # Without this a cluster with a hole refuses everything.
        for node in group.nodes:
            await node.ask("CONFIG", "SET", "cluster-require-full-coverage", "no")
        dead.process.kill()
        for (agent, _), owner in zip(pairs, owners, strict=True):
            if owner is not dead:
                agent.store(range(1000, 1100))
        alive = [pair for pair, owner in zip(pairs, owners, strict=True) if owner is not dead]
        await until(lambda: all(picker.mirrors(agent) for agent, picker in alive))
        held = [picker for (_, picker), owner in zip(pairs, owners, strict=True) if owner is dead]
        assert all(len(list(picker.view.slots())) == 1 for picker in held)
        await dead.start()
        await until(lambda: all(picker.mirrors(agent) for agent, picker in pairs))


def certificate(folder: Path) -> None:
    """An authority, and a certificate of it for this host, which servers and clients share."""
    now = datetime.datetime.now(datetime.UTC)
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "redis")])

    def signed(subject: x509.Name, public: ec.EllipticCurvePublicKey, is_ca: bool) -> x509.Certificate:
        import ipaddress

        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(ca_name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        )
        if not is_ca:
            names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))])
            builder = builder.add_extension(names, critical=False)
        return builder.sign(ca_key, hashes.SHA256())

    def write(file: str, data: bytes) -> None:
        (folder / file).write_bytes(data)

    pem = serialization.Encoding.PEM
    write("ca.pem", signed(ca_name, ca_key.public_key(), True).public_bytes(pem))
    write("cert.pem", signed(name, key.public_key(), False).public_bytes(pem))
    plain_pem = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    write("key.pem", key.private_bytes(pem, *plain_pem))


async def test_the_view_goes_over_tls_with_client_certificates(tmp_path: Path) -> None:
    certificate(tmp_path)
    [tls_port] = redis_servers.free_ports(1)
    files = [f"tls-{what} {tmp_path / name}" for what, name in
             (("ca-cert-file", "ca.pem"), ("cert-file", "cert.pem"), ("key-file", "key.pem"))]  # fmt: skip
    server = plain(Path(redis_servers.INSTALLED or ""), tmp_path / "server", f"tls-port {tls_port}", *files)
    url = f"rediss://{HOST}:{tls_port}"
    pem = {name: str(tmp_path / f"{name}.pem") for name in ("ca", "cert", "key")}
    async with running(server):
        async with pool_at(RedisConfig(url=url, **pem)) as pool:
            await mirrored(pool)
        async with pool_at(RedisConfig(url=url, ca=pem["ca"])) as pool:
            picker = await pool.picker()
            await asyncio.sleep(0.5)
            assert not picker.feed.connected
        async with pool_at(RedisConfig(url=url, cert=pem["cert"], key=pem["key"])) as pool:
            picker = await pool.picker()
            await asyncio.sleep(0.5)
            assert not picker.feed.connected


@each_server
async def test_a_password_in_a_file_can_be_changed_while_all_goes_on(binary: Path, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    server = plain(binary, tmp_path / "server", f"requirepass {PASSWORD}")
    async with running(server):
        async with pool_at(RedisConfig(url=server.url, password_file=str(file))) as pool:
            agent, picker = await mirrored(pool)
            await pool.redis.config_set("requirepass", "another")
            await server.ask("CLIENT", "KILL", "TYPE", "normal", password="another")
            await until(lambda: not picker.feed.connected)
            file.write_text("another")
            agent.store(range(1000, 1100))
            await until(lambda: picker.mirrors(agent))


async def test_the_view_goes_through_a_socket(tmp_path: Path) -> None:
    server = plain(BINARIES[0], tmp_path / "s", f"unixsocket {tmp_path}/s.sock")
    async with running(server), pool_at(f"unix://{tmp_path}/s.sock") as pool:
        await mirrored(pool)


DOCS = Path(__file__).parents[2] / "docs" / "redis.md"
ACL_LINES = {line.split()[2]: line.split()[3:] for line in DOCS.read_text().splitlines() if line.startswith("ACL SET")}


@each_server
async def test_the_rights_that_the_docs_list_are_enough_and_none_is_too_many(binary: Path, tmp_path: Path) -> None:
    server = plain(binary, tmp_path / "server")
    async with running(server), Pool(Where(server.url), "default") as pool:  # type: ignore[arg-type]
        for user, rules in ACL_LINES.items():
            await server.ask("ACL", "SETUSER", user, *(rule.replace("PASSWORD", user) for rule in rules))
        pool.server.url = server.url.replace("//", "//picker-agent:picker-agent@")  # type: ignore[misc]
        agent = await pool.agent(publisher_settings=SHORT_LEASE)
        pool.server.url = server.url.replace("//", "//picker:picker@")  # type: ignore[misc]
        picker = await pool.picker(FeedSettings(poll_s=0.02, retire_after_s=0.6, missing_grace_s=0.2, page_fields=1))
        shares = Sharing(picker.client, pool.keys, picker.view, picker.feed.synced, picker.feed.watch)
        sharing = asyncio.ensure_future(shares.run())
        agent.store(range(1, 500))
        await until(lambda: picker.mirrors(agent) and shares.statistics().is_seated)
        slot = picker.slot(agent)
        assert slot is not None
        picker.view.place(slot, [1, 2, 3], False, 1.0, 192, 0.0)
        # A littered load HASH, a gap, an end: each has commands of its own.
        await server.ask("HSET", pool.keys.load, "a", "b", "c", "d", "e", "f")
        stray = KvEvent(agent.record.epoch, agent.publisher.statistics().seq + 5, KvOp.STORE, (99_999,))
        await server.ask("XADD", pool.keys.events, "*", "e", stray.pack())
        agent.store(range(1000, 1100))
        await until(lambda: picker.mirrors(agent))
        await TokenizerStore(agent.client, pool.keys).put("0" * 64, b"tokenizer")
        assert await TokenizerStore(agent.client, pool.keys).renew("0" * 64)
        cordons = CordonRecords(picker.client, pool.keys)
        await cordons.put("w", "why")
        assert await cordons.read() == {"w": "why"}
        await cordons.remove("w")
        assert await Spending(picker.client, pool.keys).add({"quota": 1.5}) == {"quota": 1.5}
        platform = PlatformRecords(picker.client, pool.keys)
        await server.ask("HSET", pool.keys.platform, "revision", "1")
        assert await platform.orders(SECTIONS, 100) == {"revision": b"1"}
        await platform.tell({"picker": b"{}"}, 10.0)
        # What came after the last snapshot is read by a picker that comes late.
        agent.store(range(2000, 2100))
        await until(lambda: picker.mirrors(agent))
        late = await pool.picker()
        await until(lambda: late.mirrors(agent))
        await pool.stop(agent)
        await server.ask("DEL", pool.keys.worker(agent.record.worker))
        await redis_servers.until(lambda: _lacks(server, pool.keys.load, agent.record.worker))
        sharing.cancel()
        assert shares.statistics().refused == 0
        log = await server.ask("ACL", "LOG")
        denied = [str(entry) for entry in log if "client|setinfo" not in str(entry)]
        assert denied == []
        stats = await server.ask("INFO", "commandstats")
        granted = {rule[1:] for rules in ACL_LINES.values() for rule in rules if rule.startswith("+")}
        # The database is 0 here, and no connection is idle for long enough.
        assert {name for name in granted if f"cmdstat_{name}" not in stats} <= {"select", "ping"}


SHORT_LEASE = PublisherSettings(
    coalesce_s=0.002, load_interval_s=0.02, heartbeat_s=0.1, writer=WriterSettings(lease_s=0.3)
)


async def _lacks(server: Server, key: str, field: str) -> bool:
    return not await server.ask("HEXISTS", key, field)


async def test_a_user_without_rights_is_told_what_it_lacks(tmp_path: Path) -> None:
    server = plain(BINARIES[0], tmp_path / "server")
    async with running(server):
        await server.ask("ACL", "SETUSER", "weak", "on", ">weak", "~*", "-@all", "+ping")
        with capture_logs() as logs:
            async with pool_at(server.url.replace("//", "//weak:weak@")) as pool:
                picker = await pool.picker()
                await until(lambda: any(log["event"] == "redis_down" for log in logs))
                assert not picker.feed.connected
        down = next(log for log in logs if log["event"] == "redis_down")
        assert "docs/redis.md" in down["advice"]
