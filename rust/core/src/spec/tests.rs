use super::*;

/// The error of a TOML spec, with its hint after a bar.
fn error_of(text: &str) -> String {
    shown(Spec::from_toml(text).expect_err(text))
}

fn shown(error: Error) -> String {
    assert_eq!(error.kind, crate::ErrorKind::Spec);
    match error.hint {
        Some(hint) => format!("{} | {hint}", error.message),
        None => error.message,
    }
}

#[test]
fn bad_input_is_named() {
    let cases = [
        (
            "[[storage]]\nkind = \"ext5\"",
            "`storage[0].kind` is \"ext5\", which is not a known kind of storage (allowed: directory, \
             tmpfs, ext4, ext3, ext2, xfs, btrfs, f2fs, nilfs2, zfs) | did you mean `ext4`?",
        ),
        (
            "[storage]\nkind = \"f2fs\"\nblock_size = 4096",
            "`storage.block_size` is not a known key (allowed: kind, label, size, layout, devices, scheduler, read_ahead, fullness, churn, device, erase, \
             mkfs_options, mount_options) | a storage of kind `f2fs` has no `block_size`",
        ),
        (
            "[storage]\nkind = \"zfs\"\nmount_options = [\"noatime\"]",
            "`storage.mount_options` is not a known key (allowed: kind, label, size, layout, devices, scheduler, read_ahead, fullness, churn, device, erase, \
             ashift, options) | a storage of kind `zfs` has no `mount_options`",
        ),
        (
            "[storage]\nkind = \"xfs\"\nlayout = \"raidz\"",
            "`storage.layout` is \"raidz\", which is not a known layout (allowed: single, raid0, raid1, \
             raid10) | did you mean `raid0`?",
        ),
        (
            "[storage]\nkind = \"zfs\"\noptions = { recordsize = [\"8k\"] }",
            "`storage.options.recordsize` is a list, but text, a number or a boolean is expected",
        ),
        (
            "[storage]\nkind = \"zfs\"\noptions = { -o = 1 }",
            "`storage.options.-o` is not the name of a property",
        ),
        (
            "[storage]\nkind = \"zfs\"\noptions = { sync = \"\" }",
            "`storage.options.sync` is \"\", but a property may not be empty nor hold control \
             characters",
        ),
        (
            "devices = 2",
            "`devices` is not a known key (allowed: name, site, work_dir, engine, storage, workload, \
             design) | `devices` belongs under `storage`",
        ),
        (
            "[workload]\nclient = 3",
            "`workload.client` is not a known key (allowed: kind, scale, filler_random, instances, clients, threads, protocol, \
             max_tries, cache, rate, spacing, duration, transactions, warmup, slap) | did you mean `clients`?",
        ),
        (
            "clients = 3",
            "`clients` is not a known key (allowed: name, site, work_dir, engine, storage, workload, \
             design) | `clients` belongs under `workload`",
        ),
        (
            "[storage]\nkind = \"directory\"\nsize = \"1GiB\"",
            "`storage.size` is not a known key (allowed: kind, label, path) \
             | a storage of kind `directory` has no `size`",
        ),
        (
            "[[storage]]\nlabel = \"a\"",
            "`storage[0].kind` is missing (allowed: directory, tmpfs, ext4, ext3, ext2, xfs, btrfs, \
             f2fs, nilfs2, zfs)",
        ),
        (
            "[engine]\nkind = \"postgresql\"",
            "`engine.kind` is \"postgresql\", which is not a known kind of engine \
             (allowed: postgres, mariadb) | did you mean `postgres`?",
        ),
        (
            "[workload]\nclients = \"many\"",
            "`workload.clients` is \"many\" (text), but a whole number is expected",
        ),
        (
            "[workload]\nclients = [1, 2.5]",
            "`workload.clients[1]` is 2.5 (a number with a fraction), but a whole number is expected",
        ),
        ("[workload]\nclients = -1", "`workload.clients` is -1, but must not be negative"),
        ("[workload]\nscale = 5000000000", "`workload.scale` is 5000000000, but must be smaller"),
        ("[workload]\nclients = [8, 1, 8]", "`workload.clients[2]` is 8, which is there twice"),
        (
            "[workload]\nclients = []",
            "`workload.clients` is an empty list, but at least one level is expected",
        ),
        ("workload = 3", "`workload` is 3 (a whole number), but a table is expected"),
        (
            "storage = 3",
            "`storage` is 3 (a whole number), but a table or a list of tables is expected",
        ),
        ("storage = []", "`storage` is an empty list, but at least one table is expected"),
        (
            "[storage]\nkind = \"xfs\"\nsize = \"1gib\"",
            "`storage.size` is \"1gib\", but a size such as \"24GiB\" \
             (B, KiB, MiB, GiB, TiB, kB, MB, GB, TB) is expected",
        ),
        (
            "[workload]\nduration = \"2m\"",
            "`workload.duration` is \"2m\", but seconds or a time such as \"2min\" (ms, s, min, h) \
             is expected",
        ),
        (
            "[workload]\nduration = inf",
            "`workload.duration` is inf, but a finite number is expected",
        ),
        (
            "[engine]\nversion = 13.10",
            "`engine.version` is 13.1, but a version is expected as text",
        ),
        (
            "[engine]\nversion = \"13beta\"",
            "`engine.version` is \"13beta\", but a version is digits and dots, such as \"13\" or \
             \"13.23\"",
        ),
        (
            "[engine]\nurl = \"postgresql://me:secret@db/x\"",
            "`engine.url` holds a password | set it in the environment variable BEDPLATE_PASSWORD \
             or PGPASSWORD",
        ),
        (
            "[engine]\nurl = \"postgresql://db/x?password=secret\"",
            "`engine.url` holds a password | set it in the environment variable BEDPLATE_PASSWORD \
             or PGPASSWORD",
        ),
        (
            "[engine]\nurl = \"mysql://db/x\"",
            "`engine.url` is \"mysql://db/x\", but its scheme must be postgresql or postgres",
        ),
        (
            "[engine]\nkind = \"mariadb\"\nurl = \"postgres://db/x\"",
            "`engine.url` is \"postgres://db/x\", but its scheme must be mysql or mariadb",
        ),
        (
            "[engine]\nkind = \"mariadb\"\nurl = \"mysql://me:secret@db\"",
            "`engine.url` holds a password | set it in the environment variable BEDPLATE_PASSWORD \
             or MYSQL_PWD",
        ),
        (
            "[engine]\nkind = \"mariadb\"\nsettings = { a-b = 1, A_b = 1 }",
            "`engine.settings.a-b` is there twice, in different spellings",
        ),
        ("[engine.settings]\na-b = 1", "`engine.settings.a-b` is not the name of a setting"),
        (
            "[engine]\ntls = \"on\"",
            "`engine.tls` is \"on\", which is not a known mode of TLS (allowed: off, require, verify)",
        ),
        ("[engine.settings]\n\"a b\" = 1", "`engine.settings.a b` is not the name of a setting"),
        (
            "[engine.settings]\nfsync = { a = 1 }",
            "`engine.settings.fsync` is a table, but text, a number or a boolean is expected",
        ),
        ("work_dir = \"here\"", "`work_dir` is \"here\", but an absolute path is expected"),
        (
            "name = \"a/b\"",
            "`name` is \"a/b\", but a name may not be empty nor hold `/` or control characters",
        ),
        (
            "[design]\nprofile = \"gates\"",
            "`design.profile` is \"gates\", which is not a known profile \
             (allowed: smoke, gate, publish, calibrate) | did you mean `gate`?",
        ),
        (
            "[engine]\nprovision = \"podman\"",
            "`engine.provision` is \"podman\", which is not a known provision \
             (allowed: container, process, url)",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(error_of(text), expected);
    }
}

#[test]
fn syntax_errors_have_a_line() {
    let message = error_of("name = \"a\"\n\nsite = = 3\n");
    assert!(message.starts_with("the spec is not valid TOML, line 3: "), "{message}");
    let message = error_of("name = \"a\"\nname = \"b\"\n");
    assert!(message.starts_with("the spec is not valid TOML, line 2: "), "{message}");
    let message = shown(Spec::from_json("{\n\"name\": }").expect_err("syntax"));
    assert!(message.starts_with("the spec is not valid JSON: "), "{message}");
    assert!(message.contains("line 2"), "{message}");
    let message = shown(Spec::from_json("{\"name\": \"a\", \"name\": \"b\"}").expect_err("twice"));
    assert!(message.contains("the key `name` is there twice"), "{message}");
    assert_eq!(
        shown(Spec::from_json("[]").expect_err("a list")),
        "the spec is not a table of keys and values"
    );
}

#[test]
fn files_are_known_by_their_ending() {
    let toml = Spec::from_bytes(b"[storage]\nkind = \"xfs\"", "specs/quick.toml").expect("reads");
    assert_eq!(toml.name.as_deref(), Some("quick"));
    let json = Spec::from_bytes(b"{\"storage\":{\"kind\":\"xfs\"}}", "quick.json").expect("reads");
    assert_eq!(toml, json);
    assert_eq!(
        shown(Spec::from_bytes(b"", "quick.yaml").expect_err("no yaml")),
        "quick.yaml is neither a .toml nor a .json file, so its form is not known"
    );
    assert_eq!(
        shown(Spec::from_bytes(b"name = \"caf\xe9\"", "quick.toml").expect_err("Latin-1")),
        "quick.toml is not UTF-8 text: byte 11 is wrong | save the file with the encoding UTF-8"
    );
    let message = shown(Spec::from_bytes(b"\n=", "quick.toml").expect_err("syntax"));
    assert!(message.starts_with("quick.toml is not valid TOML, line 2: "), "{message}");
}

#[test]
fn toml_and_json_say_the_same() {
    let toml = Spec::from_toml(
        r#"
        name = "all"
        site = "local"
        work_dir = "/var/tmp/bedplate"
        [[engine]]
        label = "a"
        version = ["13", "15"]
        allow_other_version = true
        provision = "container"
        shm_size = "256MiB"
        memory = "2GiB"
        cpus = 1.5
        transport = "tcp"
        settings = { max_wal_size = ["1GB", "4GB"], autovacuum = false, work_mem = 4096, random_page_cost = 1.1 }
        locale = "C"
        encoding = "UTF8"
        checksums = true
        [[storage]]
        kind = "ext4"
        size = "24GiB"
        block_size = [1024, "4KiB"]
        mkfs_options = ["-E", "stride=16"]
        mount_options = []
        [[storage]]
        kind = "directory"
        label = "plain"
        path = "/srv"
        [[storage]]
        kind = "tmpfs"
        size = 1073741824
        [[storage]]
        kind = "btrfs"
        layout = ["raid0", "raid1"]
        devices = 2
        [[storage]]
        kind = "zfs"
        size = "4GiB"
        layout = "raidz"
        devices = 3
        ashift = 12
        options = { recordsize = "32k", atime = false, copies = 1 }
        [workload]
        kind = ["tpcb", "select-only"]
        scale = 10
        clients = [1, 8]
        threads = 1
        protocol = ["simple", "prepared"]
        duration = "2min"
        warmup = 1.5
        [design]
        profile = "gate"
        blocks = 3
        seed = 7
        baseline = { storage = "ext4", clients = 8 }
        "#,
    )
    .expect("reads");
    let json = Spec::from_json(
        r#"{
        "name": "all", "site": "local", "work_dir": "/var/tmp/bedplate",
        "engine": [{"label": "a", "version": [13, 15], "allow_other_version": true,
            "provision": "container", "shm_size": 268435456, "memory": 2147483648, "cpus": 1.5,
            "transport": "tcp", "image": null,
            "settings": {"max_wal_size": ["1GB", "4GB"], "autovacuum": "off", "work_mem": "4096",
                "random_page_cost": "1.1"},
            "locale": "C", "encoding": "UTF8", "checksums": true}],
        "storage": [
            {"kind": "ext4", "size": 25769803776, "block_size": [1024, 4096],
                "mkfs_options": ["-E", "stride=16"], "mount_options": []},
            {"kind": "directory", "label": "plain", "path": "/srv"},
            {"kind": "tmpfs", "size": "1GiB"},
            {"kind": "btrfs", "layout": ["raid0", "raid1"], "devices": 2},
            {"kind": "zfs", "size": 4294967296, "layout": ["raidz"], "devices": 3, "ashift": 12,
                "options": {"recordsize": "32k", "atime": "off", "copies": "1"}}],
        "workload": {"kind": ["tpcb", "select-only"], "scale": [10], "clients": [1, 8],
            "threads": [1], "protocol": ["simple", "prepared"], "duration": 120, "warmup": 1.5},
        "design": {"profile": "gate", "blocks": 3, "seed": 7,
            "baseline": {"storage": "ext4", "clients": "8"}}
        }"#,
    )
    .expect("reads");
    assert_eq!(toml, json);
    assert_eq!(toml.workload.duration_s, Some(120.0));
    assert_eq!(toml.engines[0].settings["autovacuum"], ["off"]);
    let StorageSpecKind::Loop(FileSystem::Ext4, volume) = &toml.storages[0].kind else {
        panic!("ext4")
    };
    assert_eq!(volume.devices.size_bytes, Some(24 << 30));
    assert_eq!(volume.mount_options, Some(vec![]));
    let StorageSpecKind::Zfs(volume) = &toml.storages[4].kind else { panic!("zfs") };
    assert_eq!(volume.devices.layout, [Layout::Raidz]);
    assert_eq!(volume.options["atime"], "off");
}
