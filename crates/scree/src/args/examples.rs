//! Examples at the end of help texts. A test parses each of them.

pub const SCREE: &str = "\
Examples:
  scree up --dir /srv/scree                     # everything in one process
  scree volume create disk1 --size 10G
  scree volume export disk1                     # prints an NBD URI";

pub const UP: &str = "\
Examples:
  scree up --dir /srv/scree
  scree up --dir /srv/scree --cache /ssd/cache --cache-size 50G";

pub const CONTROLLER: &str = "\
Examples:
  scree controller --dir /srv/scree --listen 10.0.0.1:8443 --name c1.example.com
  scree controller --dir /srv/scree --listen 10.0.0.1:8443 --database-file /etc/scree/database";

pub const AGENT: &str = "\
Examples:
  scree agent --dir /srv/scree
  scree agent --dir /srv/scree --cache /dev/nvme0n1p4 --listen-metrics 127.0.0.1:9464";

pub const RELAY: &str = "\
Examples:
  scree relay --listen unix:/run/r.sock --to nbd://10.0.0.2:10809/disk --policy filters.toml
  scree relay --listen tcp:127.0.0.1 --to nbd://10.0.0.2:10809/disk --active --journal /ssd/relay";

pub const FILTER_SERVER: &str = "\
Examples:
  scree filter-server --listen 10.0.0.3:10810 --filter-dir /etc/scree/filters --authority ca.pem
  scree filter-server --listen '[::]:10810' --filter-dir /srv/filters --authority ca.pem";

pub const LOGIN: &str = "\
Examples:
  scree login https://c1.example.com:8443 --token TOKEN --authority sha256:0a1b
  scree login https://c1.example.com:8443 --cert me.pem --key me.key --ca ca.pem";

pub const CACHE: &str = "\
Examples:
  scree cache simulate --trace trace.0 trace.1
  scree cache simulate --trace fio.log --policy lru,lirs,belady --plot hits.svg";

pub const PRIVACY: &str = "\
Examples:
  scree privacy audit disk1 --units u1,u3 --files
  scree privacy audits disk1";

pub const COST: &str = "\
Examples:
  scree cost calibrate --place filter
  scree cost predict --write 10G --request 64K";

pub const VOLUME: &str = "\
Examples:
  scree volume create disk1 --size 10G
  scree volume restore disk1 --at -10m";

pub const SNAPSHOT: &str = "\
Examples:
  scree snapshot create disk1 --name before-upgrade
  scree volume create copy --from before-upgrade";

pub const ATTACH: &str = "\
Examples:
  scree attach disk1 --vm qmp:/run/vm1.sock
  scree attach disk1 --vm libvirt:vm1 --host h1 --read-only";

pub const DETACH: &str = "\
Examples:
  scree detach disk1
  scree detach disk1 --vm libvirt:vm1 --force";

pub const ATTACHMENT: &str = "\
Examples:
  scree attachment list --host h1
  scree attachment move att-1 --host h2 --vm libvirt:vm1";

pub const CHAIN: &str = "\
Examples:
  scree chain apply policy.toml
  scree chain show disk1";

pub const IMAGE: &str = "\
Examples:
  scree image mark debian-13
  scree image preload debian-13 --host h1 --host h2";

pub const MONITOR: &str = "\
Examples:
  scree monitor disk1
  scree monitor disk1 --follow";

pub const TRACE: &str = "\
Examples:
  scree trace disk1
  scree trace disk1 --format iolog --device /dev/vdb";

pub const PROJECT: &str = "\
Examples:
  scree project add web --volumes 100 --size 10T
  scree project join web alice";

pub const GRANT: &str = "\
Examples:
  scree grant add alice use --volume disk1
  scree grant list --host h1";

pub const UNIT: &str = "\
Examples:
  scree unit add s3://bucket/prefix --zone rack2
  scree unit remove u3 --lost --dry-run
  scree unit --dir /srv/unit --listen 10.0.0.4:7070";

pub const KEY: &str = "\
Examples:
  scree key add vault-2026
  scree key rotate main vault-2026 --wait";

pub const USER: &str = "\
Examples:
  scree user add alice
  scree user token alice";

pub const HOST: &str = "\
Examples:
  scree host add h1
  scree host join https://c1:8443 --token TOKEN --authority sha256:0a1b --dir /srv/h1";

pub const TOP: &str = "\
Examples:
  scree top
  scree top --once -o json";
