//! What the test runs on, read from `/proc`.

use std::{convert::Infallible, fs, hint, process::Command, time::Duration};

use rustix::{
    process::{Resource, Rlimit, getrlimit, setrlimit},
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};
use thread_priority::{
    NormalThreadSchedulePolicy::Idle, ThreadPriority, ThreadSchedulePolicy,
    set_thread_priority_and_policy, thread_native_id,
};

use crate::Result;

/// Which core does what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cores {
    /// The server under test.
    pub(crate) server: usize,
    /// Redis and the load generator.
    pub(crate) load: usize,
}

impl Cores {
    /// The first two cores that this process may use; `None` where there is but one.
    pub(crate) fn choose() -> Result<Option<Self>> {
        let allowed = sched_getaffinity(None)?;
        let mut cores = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core));
        Ok(match (cores.next(), cores.next()) {
            (Some(server), Some(load)) => Some(Self { server, load }),
            _ => None,
        })
    }
}

/// Pins this thread, and those that it starts from now on.
pub(crate) fn pin(core: usize) -> Result<()> {
    let mut cores = CpuSet::new();
    cores.set(core);
    Ok(sched_setaffinity(None, &cores)?)
}

/// Runs for as long as nothing else wants the core, so that it is never halted: all others come
/// before `SCHED_IDLE`, at once.
pub(crate) fn keep_awake() -> Result<Infallible> {
    set_thread_priority_and_policy(
        thread_native_id(),
        ThreadPriority::Min,
        ThreadSchedulePolicy::Normal(Idle),
    )
    .map_err(|error| format!("no idle scheduling: {error:?}"))?;
    loop {
        hint::spin_loop();
    }
}

/// Lets this process and its children have as many open files as the system allows: a thousand
/// connections are more than the usual limit.
pub(crate) fn raise_open_files() -> Result<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    Ok(setrlimit(
        Resource::Nofile,
        Rlimit {
            current: maximum,
            maximum,
        },
    )?)
}

/// The time that the threads of a process have run, by the scheduler's count.
pub(crate) fn cpu(pid: u32) -> Result<Duration> {
    let mut sum = 0;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end meanwhile.
        if let Ok(text) = fs::read_to_string(thread?.path().join("schedstat")) {
            let nanos = text.split_whitespace().next().unwrap_or_default();
            sum += nanos.parse::<u64>()?;
        }
    }
    Ok(Duration::from_nanos(sum))
}

/// The memory that this process has in use, in bytes.
pub(crate) fn resident() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let kib = field(&status, "VmRSS").and_then(|text| text.strip_suffix(" kB")?.parse().ok());
    Ok(kib.map(|kib: u64| kib * 1024).ok_or("no VmRSS")?)
}

/// The time that the hypervisor took from this machine, and all time, in ticks.
pub(crate) fn stolen() -> Result<(u64, u64)> {
    let stat = fs::read_to_string("/proc/stat")?;
    let line = stat.lines().next().unwrap_or_default();
    // user, nice, system, idle, iowait, irq, softirq, steal
    let ticks: Vec<u64> = line
        .split_whitespace()
        .skip(1)
        .take(8)
        .map(str::parse)
        .collect::<std::result::Result<_, _>>()?;
    Ok((*ticks.get(7).unwrap_or(&0), ticks.iter().sum()))
}

/// The average number of processes that wanted to run in the last minute.
pub(crate) fn load_average() -> Result<String> {
    let text = fs::read_to_string("/proc/loadavg")?;
    Ok(text.split(' ').next().unwrap_or_default().to_owned())
}

/// Processor, memory, system and compiler, in a line.
pub(crate) fn describe() -> Result<String> {
    let processor = fs::read_to_string("/proc/cpuinfo")?;
    let model = field(&processor, "model name").unwrap_or(std::env::consts::ARCH);
    // Not those that this process may use: it is pinned.
    let cores = processor
        .lines()
        .filter(|line| line.starts_with("processor"))
        .count();
    let memory = fs::read_to_string("/proc/meminfo")?;
    let kib: u64 = field(&memory, "MemTotal")
        .and_then(|text| text.strip_suffix(" kB")?.parse().ok())
        .unwrap_or_default();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let compiler = Command::new("rustc").arg("--version").output();
    let compiler = compiler.map_or_else(
        |_| "rustc unknown".into(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    );
    Ok(format!(
        "{model}, {cores} cores, {:.0} GiB; Linux {}; {compiler}",
        kib as f64 / 1024.0 / 1024.0,
        kernel.trim(),
    ))
}

/// The value of the first `name: value` line.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}
