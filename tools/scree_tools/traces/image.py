"""The disks of tools/run traces: an image of Debian, and the disks of a database and a file server.

Programs of the image create everything in its tree, before a machine boots. Existing files are
kept.
"""

import random
import shutil

from scree_tools.common.process import run

MIB = 1 << 20

PACKAGES = (
    "systemd-sysv,udev,dbus,linux-image-cloud-amd64,e2fsprogs,procps,less,man-db,locales,perl,"
    "python3,gcc,libc6-dev,make,git,sqlite3,vim-tiny,gawk,openssl,ca-certificates,curl,file,"
    "openssh-server,cron,rsyslog,nginx-light,postgresql"
)

# The guest runs commands from its serial line. They read nothing from it.
CONTROL = """[Unit]
Description=What is typed on the serial line
After=multi-user.target

[Service]
Type=idle
ExecStart=/bin/sh -c 'stty -echo; echo "GUEST: up"; cat | bash'
StandardInput=tty
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
Environment=TERM=dumb HOME=/root
WorkingDirectory=/root

[Install]
WantedBy=multi-user.target
"""

NGINX = """server {
    listen 80 default_server;
    root /data/files;
    client_max_body_size 64m;
    location / { dav_methods PUT; }
}
"""

# Rows of the database: 100,000 for each unit of scale, 15 MB with their index.
SCALE = 32

INITDB = f"""set -e
install -d -o postgres -g postgres /srv/database
cat >/srv/make <<'MAKE'
set -e
PATH=$(echo /usr/lib/postgresql/*/bin):$PATH
initdb -D /srv/database/pg --locale=C --encoding=UTF8 >/dev/null
cat >>/srv/database/pg/postgresql.conf <<'CONF'
shared_buffers = 24MB
max_connections = 20
huge_pages = off
max_parallel_workers_per_gather = 0
max_parallel_maintenance_workers = 0
max_wal_size = 128MB
dynamic_shared_memory_type = mmap
unix_socket_directories = '/tmp'
listen_addresses = ''
CONF
pg_ctl -D /srv/database/pg -o '-c fsync=off' -l /srv/database/log -w start >/dev/null
pgbench -h /tmp -i -I dtgvp -s {SCALE} -q postgres
pg_ctl -D /srv/database/pg -m fast -w stop >/dev/null
MAKE
su postgres -c 'bash /srv/make'
rm /srv/make
"""

# Files of the server: how many, and their sizes, which are distributed log-normally about
# this median.
FILES, MEDIAN_BYTES, SIGMA, BYTES_MAX = 6000, 24 << 10, 1.6, 16 * MIB


def file_sizes():
    chance = random.Random("sizes")
    sizes = [int(MEDIAN_BYTES * chance.lognormvariate(0, SIGMA)) for _ in range(FILES)]
    return [min(max(size, 200), BYTES_MAX) for size in sizes]


def file_name(number):
    return f"{number % 60:02}/{number:05}.bin"


def make_ext4(tree, image, mib):
    part = image.with_suffix(".new")
    run("truncate", "-s", f"{mib}M", part)
    run("/usr/sbin/mke2fs", "-q", "-F", "-t", "ext4", "-d", tree, part)
    part.rename(image)


def debian(folder, say):
    """`system.img`, its kernel and initrd, and `database.img`."""
    if (folder / "database.img").exists():
        return
    tree = folder / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    say("Making an image of Debian")
    (folder / "initdb").write_text(INITDB)
    run(
        "mmdebstrap",
        "--mode=root",
        "--variant=minbase",
        f"--include={PACKAGES}",
        f'--customize-hook=chroot "$1" bash -s <{folder / "initdb"}',
        "bookworm",
        tree,
    )
    (tree / "etc/hostname").write_text("guest\n")
    (tree / "etc/fstab").write_text("/dev/vda / ext4 errors=remount-ro 0 1\n")
    (tree / "etc/systemd/system/control.service").write_text(CONTROL)
    (tree / "etc/nginx/sites-available/default").write_text(NGINX)
    (tree / "data").mkdir()
    run("chroot", tree, "systemctl", "enable", "control.service")
    run("chroot", tree, "systemctl", "mask", "serial-getty@ttyS0.service")
    # It is started where it is needed, on its own disk.
    run("chroot", tree, "systemctl", "disable", "postgresql.service")
    for name in ("vmlinuz", "initrd.img"):
        shutil.copyfile(tree / name, folder / name)
    data = folder / "data"
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir()
    (tree / "srv/database/pg").rename(data / "pg")
    shutil.rmtree(tree / "srv/database")
    make_ext4(tree, folder / "system.img", 3072)
    make_ext4(data, folder / "database.img", 1024)
    shutil.rmtree(data)
    shutil.rmtree(tree)


def files(folder, say):
    """`files.img`."""
    if (folder / "files.img").exists():
        return
    say("Making the files of a server")
    tree = folder / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    chance = random.Random("content")
    content = chance.randbytes(BYTES_MAX)
    for number, size in enumerate(file_sizes()):
        path = tree / "files" / file_name(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content[:size])
    run("chown", "-R", "33:33", tree / "files")
    make_ext4(tree, folder / "files.img", 1024)
    shutil.rmtree(tree)
