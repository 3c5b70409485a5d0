//! The scripts that run in Redis: all that reads a message's time and then changes it is one script, and so one step.
//!
//! They are sent whole each time (`EVAL`), because a Redis that was restarted or failed over knows no digests; it compiles
//! each text only once.

use std::sync::LazyLock;

/// `allow-oom`: a Redis without room must still hand out and delete, or it never had room again.
const WRITES: &str = "#!lua flags=allow-oom\n";
const READS: &str = "#!lua flags=no-writes\n";
const STORES: &str = "#!lua\n";

const NOW: &str = include_str!("scripts/now.lua");
const DROP: &str = include_str!("scripts/drop.lua");
const OURS: &str = include_str!("scripts/ours.lua");
const DESCRIBE: &str = include_str!("scripts/describe.lua");

/// A script's text.
pub(super) type Script = LazyLock<String>;

macro_rules! script {
    ($(#[$doc:meta])* $name:ident, $file:literal, $flags:ident $(, $part:ident)*) => {
        $(#[$doc])*
        pub(super) static $name: Script =
            LazyLock::new(|| [$flags, $($part,)* include_str!($file)].concat());
    };
}

script!(KEEP, "scripts/keep.lua", STORES, NOW);
script!(CLAIM, "scripts/claim.lua", WRITES, NOW);
script!(DELETE, "scripts/delete.lua", WRITES, DROP, OURS);
script!(MOVE, "scripts/move.lua", WRITES, NOW, OURS);
script!(CANCEL, "scripts/cancel.lua", WRITES, NOW, DROP);
script!(TAKE, "scripts/take.lua", WRITES, NOW);
script!(HASTEN, "scripts/hasten.lua", WRITES, NOW);
script!(LIST, "scripts/list.lua", READS, NOW, DESCRIBE);
script!(FIND, "scripts/find.lua", READS, NOW, DESCRIBE);
script!(COUNT, "scripts/count.lua", READS);
script!(RECOUNT, "scripts/recount.lua", WRITES);

/// Does nothing, and is refused exactly when [`KEEP`] is: without room, on a replica, after an error of the disk.
pub(super) static PROBE: Script = LazyLock::new(|| format!("{STORES}return 1"));
