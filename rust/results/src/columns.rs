//! What every column of every table means. The documentation is generated from here.

/// One column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    /// Its name, ending in its unit where it has one.
    pub name: &'static str,
    /// Its unit, in words; empty for names and labels.
    pub unit: &'static str,
    /// What it says, and when it is null.
    pub meaning: &'static str,
}

const fn column(name: &'static str, unit: &'static str, meaning: &'static str) -> Column {
    Column { name, unit, meaning }
}

/// Table `trials`: one row a finished trial. After `cell` comes one column for each further factor
/// that varies, with the level's name.
pub const TRIALS: &[Column] = &[
    column("run", "", "identifier of the run"),
    column("trial", "", "number of the trial in order of execution, from 0"),
    column("block", "", "block it belongs to, from 0"),
    column("cell", "", "label of its cell, unique in the plan"),
    column("engine", "", "level of the factor engine"),
    column("storage", "", "level of the factor storage"),
    column("workload", "", "workload that was executed"),
    column("scale", "", "scale factor; 100,000 accounts each"),
    column("instances", "instances", "copies of the workload that ran at once, each in its schema"),
    column("clients", "clients", "concurrent connections of each instance"),
    column("threads", "threads", "threads that carried those of one instance"),
    column("protocol", "", "how statements were sent: simple, extended, prepared"),
    column("cache", "", "what of the loaded data was in memory when the load started: warm, cold"),
    column("engine_kind", "", "kind of the engine: postgres, mariadb"),
    column("engine_version", "", "version the live server gave; null when none ran"),
    column("driver", "", "name and version of the client side: wire and transport"),
    column("version_asked", "", "version, or prefix of one, that the plan asks for"),
    column("trust", "", "whether the numbers may be used: sound, caveat, void"),
    column("trust_reasons", "", "why not sound, joined by `; `; empty when sound"),
    column(
        "tps",
        "transactions per second",
        "committed transactions of the measured window by its length, summed over instances; null \
         when void",
    ),
    column("queries_per_second", "1/s", "slap: queries of all clients over the window; else null"),
    column(
        "pts_queries_per_second",
        "1/s",
        "slap: 1000 over the average seconds of an iteration, connecting and closing included, as \
         Phoronix prints it; else null",
    ),
    column("committed", "transactions", "committed within the measured window"),
    column("retried", "tries", "tries repeated with the same values within the measured window"),
    column("failed", "transactions", "failed within the measured window"),
    column("failed_by_sqlstate", "", "failed transactions as `SQLSTATE=count`, joined by `; `"),
    column("clients_lost", "clients", "clients that lost or never had their connection"),
    column("window_s", "seconds", "length of the measured window, of the longest instance"),
    column(
        "service_time_ms_mean",
        "milliseconds",
        "mean of done − started over committed transactions; null when void",
    ),
    column(
        "service_time_ms_p50",
        "milliseconds",
        "median; like every quantile q by nearest rank, and null when void or n·(1 − q) < 10",
    ),
    column("service_time_ms_p90", "milliseconds", "90 % quantile"),
    column("service_time_ms_p95", "milliseconds", "95 % quantile"),
    column("service_time_ms_p99", "milliseconds", "99 % quantile"),
    column("service_time_ms_p999", "milliseconds", "99.9 % quantile"),
    column("service_time_ms_max", "milliseconds", "largest; null when void"),
    column(
        "rate_per_s",
        "1/s",
        "arrivals of each instance that were asked for; null in a closed loop",
    ),
    column("spacing", "", "how arrivals were spaced: poisson, even; null in a closed loop"),
    column(
        "scheduled",
        "transactions",
        "that were to start within the window; null in a closed loop",
    ),
    column(
        "overloaded",
        "",
        "whether they were more than the server could serve; null in a closed loop",
    ),
    column(
        "response_time_ms_mean",
        "milliseconds",
        "mean of done − intended over committed transactions; null in a closed loop, when overloaded and when void",
    ),
    column(
        "response_time_ms_p50",
        "milliseconds",
        "median; null as `response_time_ms_mean`, and like service times",
    ),
    column("response_time_ms_p90", "milliseconds", "90 % quantile"),
    column("response_time_ms_p95", "milliseconds", "95 % quantile"),
    column("response_time_ms_p99", "milliseconds", "99 % quantile"),
    column("response_time_ms_p999", "milliseconds", "99.9 % quantile"),
    column("response_time_ms_max", "milliseconds", "largest"),
    column(
        "lag_ms_mean",
        "milliseconds",
        "mean of started − intended over the same; null in a closed loop, when overloaded and when void",
    ),
    column("lag_ms_p50", "milliseconds", "median; null as `lag_ms_mean`, and like service times"),
    column("lag_ms_p90", "milliseconds", "90 % quantile"),
    column("lag_ms_p95", "milliseconds", "95 % quantile"),
    column("lag_ms_p99", "milliseconds", "99 % quantile"),
    column("lag_ms_p999", "milliseconds", "99.9 % quantile"),
    column("lag_ms_max", "milliseconds", "largest"),
    column(
        "client_cpu_us_per_transaction",
        "microseconds",
        "CPU time of the load threads by committed transactions; null when void",
    ),
    column("connect_s", "seconds", "from the first connection attempt until all were connected"),
    column(
        "load_s",
        "seconds",
        "filling the database, in all iterations together; null when it was not reached",
    ),
    column("database_bytes", "bytes", "size of the database after loading; null when unknown"),
    column(
        "volume_used_bytes",
        "bytes",
        "what files take on the volume after loading; null where that cannot be seen",
    ),
    column(
        "compressed_share",
        "share",
        "what gzip leaves of a sample of the loaded tables; null where they cannot be read",
    ),
    column(
        "cached_share",
        "share",
        "the volume's files that were in the kernel's page cache before the load; null where that cannot be seen",
    ),
    column(
        "settings_profile",
        "",
        "where settings that the spec does not state come from: stock, fs-tuned",
    ),
    column(
        "page_bytes",
        "bytes",
        "page of the live server: PostgreSQL's `block_size`, InnoDB's `innodb_page_size`",
    ),
    column("fsync", "", "setting as the live server gave it"),
    column("synchronous_commit", "", "setting as the live server gave it"),
    column("full_page_writes", "", "setting as the live server gave it"),
    column("fs_type", "", "file system under the data directory, as the server sees it"),
    column("mount_options", "", "its mount and super-block options, joined by `,`"),
    column("mkfs_command", "", "command that made the file system; null when none was made"),
    column("loop_direct_io", "", "whether the loop device reads and writes directly"),
    column("storage_line", "", "what the volume was, as it was read back, in one line"),
    column(
        "sync_us_p50",
        "microseconds",
        "writing 8 KiB and waiting for stable storage before the trial, median; null when not probed",
    ),
    column("sync_us_p95", "microseconds", "the same, 95 % quantile"),
    column(
        "cold_read_bytes_per_s",
        "bytes/s",
        "reading what the kernel was told to forget, before the trial; null when not probed",
    ),
    column(
        "durability",
        "",
        "what flushes say of commits: durable (one each), group (shared by no more than wait for \
         one), not durable, unknown",
    ),
    column(
        "writing_commits",
        "transactions",
        "commits of the whole load that wrote something; null when that is not known",
    ),
    column(
        "device_flushes",
        "flushes",
        "of the volume, completed during the whole load: of devices that are flushed together those of the \
         one with most, of the members of a ZFS stripe all; null when they cannot be seen",
    ),
    column(
        "device_read_bytes",
        "bytes",
        "read from the volume's devices during the whole load; null when they cannot be seen",
    ),
    column(
        "device_written_bytes",
        "bytes",
        "written to the volume's devices during the whole load; null when they cannot be seen",
    ),
    column(
        "device_written_bytes_per_commit",
        "bytes",
        "those by writing commits: what a commit costs below the file system; null when void",
    ),
    column("device_flushes_per_commit", "flushes", "those by writing commits; null when void"),
    column(
        "wal_bytes",
        "bytes",
        "of write-ahead log (InnoDB: redo log) written during the whole load; null when not told",
    ),
    column("wal_bytes_per_commit", "bytes", "those by writing commits; null when void"),
    column(
        "cache_hit_ratio",
        "share",
        "blocks of the whole load that were in the server's own cache; null when void or not told",
    ),
    column(
        "server_cpu_us_per_transaction",
        "microseconds",
        "CPU time of the server's processes by transactions of the whole load; null when void or unseen",
    ),
    column(
        "volume_s",
        "seconds",
        "making the volume; null when it was not reached, as all that follow",
    ),
    column("age_s", "seconds", "filling it with files, where it was aged"),
    column("probe_s", "seconds", "writing to it and reading from it before anything is there"),
    column("server_s", "seconds", "starting the server"),
    column("settle_s", "seconds", "flushing what was loaded and waiting for an idle device"),
    column("verify_s", "seconds", "checking invariants"),
    column("teardown_s", "seconds", "stopping the server and undoing all that was made"),
    column("image", "", "container image that ran; null without a container"),
    column("started_at", "", "wall-clock start, RFC 3339 in UTC"),
    column("error", "", "error that ended the trial early; null when none did"),
];

/// Table `intervals`: one row a second of warm-up and measuring.
pub const INTERVALS: &[Column] = &[
    column("run", "", "identifier of the run"),
    column("trial", "", "number of the trial"),
    column("phase", "", "warmup or measure"),
    column("start_s", "seconds", "from the start of the load to the start of the interval"),
    column("length_s", "seconds", "length; the last interval of a phase may be shorter"),
    column("committed", "transactions", "committed transactions that ended in the interval"),
    column("retried", "tries", "tries in the interval that were repeated with the same values"),
    column("failed", "transactions", "failed transactions that ended in the interval"),
    column("live_clients", "clients", "clients connected at the end of the interval"),
    column("tps", "transactions per second", "committed by length; null when the trial is void"),
    column("service_time_ms_p50", "milliseconds", "median; null as in `trials`"),
    column("service_time_ms_p99", "milliseconds", "99 % quantile; null as in `trials`"),
    column("service_time_ms_max", "milliseconds", "largest; null when the trial is void"),
];

/// Table `instances`: one row an instance of the workload in a finished trial that was measured. A
/// workload that is not multiplied is one instance.
pub const INSTANCES: &[Column] = &[
    column("run", "", "identifier of the run"),
    column("trial", "", "number of the trial"),
    column(
        "instance",
        "",
        "number of the instance, from 0; schema and user are `bench01` and so on",
    ),
    column(
        "tps",
        "transactions per second",
        "committed transactions of its measured window by its length; null when the trial is void",
    ),
    column("committed", "transactions", "committed within its measured window"),
    column("retried", "tries", "tries repeated with the same values within its measured window"),
    column("failed", "transactions", "failed within its measured window"),
    column(
        "started_s",
        "seconds",
        "from the start of the load until all its threads had started their first transaction",
    ),
    column("window_s", "seconds", "length of its measured window"),
    column("service_time_ms_mean", "milliseconds", "mean; null as in `trials`"),
    column("service_time_ms_p50", "milliseconds", "median; null as in `trials`"),
    column("service_time_ms_p90", "milliseconds", "90 % quantile; null as in `trials`"),
    column("service_time_ms_p95", "milliseconds", "95 % quantile; null as in `trials`"),
    column("service_time_ms_p99", "milliseconds", "99 % quantile; null as in `trials`"),
    column("service_time_ms_p999", "milliseconds", "99.9 % quantile; null as in `trials`"),
    column("service_time_ms_max", "milliseconds", "largest; null when the trial is void"),
];

/// Table `latency`: the histogram of a trial's measured window, one row a bucket that is not
/// empty. A void trial has no rows.
pub const LATENCY: &[Column] = &[
    column("run", "", "identifier of the run"),
    column("trial", "", "number of the trial"),
    column("phase", "", "measure"),
    column("service_time_ms", "milliseconds", "upper end of the bucket"),
    column("count", "transactions", "committed transactions in the bucket"),
];

/// Table `metrics`: one row a reading.
pub const METRICS: &[Column] = &[
    column("run", "", "identifier of the run"),
    column("trial", "", "number of the trial"),
    column("at_s", "seconds", "from the start of the load"),
    column("metric", "", "name of the metric, ending in its unit"),
    column("value", "the metric's", "the reading"),
];
