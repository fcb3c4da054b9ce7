//! How processes ended, in the words of launchers that are not torchrun: srun, mpirun, spawn, Lightning, shells, DeepSpeed,
//! vLLM, Composer, Flux, Horovod, those of machines and of clouds.

mod clouds;
mod composer;
mod crashes;
mod flux;
mod horovod;
mod mpi;
mod vendors;

use firstfault_format::signals;
use mpi::{in_two_lines, signal_of_hydra};
use regex::{Captures, Regex};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// The end of one process, as a launcher saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Exit {
    pub(crate) path: PathBuf,
    /// Its line in the log, from 1.
    pub(crate) line: usize,
    pub(crate) who: Who,
    /// An exit code, or minus a signal's number.
    pub(crate) status: i64,
    pub(crate) host: Option<String>,
    pub(crate) pid: Option<u32>,
    /// Whether the launcher had begun to end its processes by then, so that it may be the sender of the signal.
    pub(crate) after_others: bool,
    /// Whether the launcher ended a step, and tells of all processes that did not end well.
    pub(crate) told_all: bool,
}

/// Which process it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    /// A task of srun's or mpirun's: a rank, unless a launcher runs in it.
    Task(u32),
    /// A process of one host's launcher.
    Local(u32),
    /// A rank, by a launcher that numbers the processes of all hosts.
    Rank(u32),
    /// One that nothing tells but, perhaps, its process ID.
    Unknown,
}

impl Exit {
    /// Returns the task that it tells of.
    pub(crate) fn task(&self) -> Option<u32> {
        match self.who {
            Who::Task(task) => Some(task),
            _ => None,
        }
    }
}

/// At most so many exits of one log are kept.
const MAX_EXITS: usize = 1 << 17;

/// Tasks from here on are a mistake.
const MAX_TASK: u32 = 1 << 20;

/// A shell that says how its last command ended says little more.
const LAST_LINES: usize = 20;

struct Form {
    /// What each line of the form holds, so that most lines cost one search.
    literal: &'static str,
    pattern: &'static str,
    read: fn(&Captures<'_>) -> Option<Ends>,
}

/// What one line says, of one process or of several.
type Ends = Vec<(Who, Said)>;

/// What a launcher says of one process besides its number.
#[derive(Debug, Clone, Default)]
struct Said {
    status: i64,
    host: Option<String>,
    pid: Option<u32>,
}

impl Said {
    fn code(status: i64) -> Self {
        Self {
            status,
            ..Self::default()
        }
    }
}

const FORMS: &[Form] = &[
    // Source: slurm/src/srun/libsrun/launch.c, _launch_app
    Form {
        literal: "srun: error: ",
        pattern: r"srun: error: ([\w.,\[\]-]+): tasks? ([\d,-]+): (.+)$",
        read: |found| {
            let status = ended(&found[3])?;
            let host = Some(found[1].to_owned()).filter(|host| !host.contains(['[', ',']));
            let tasks = list(&found[2])?.into_iter();
            let said = Said {
                status,
                host,
                pid: None,
            };
            Some(tasks.map(|task| (Who::Task(task), said.clone())).collect())
        },
    },
    // Source: open-mpi/ompi, help-prte-ess and help-orterun texts
    Form {
        literal: " noticed that process rank ",
        pattern: r"noticed that process rank (\d+) with PID (\d+) on node (\S+) exited on signal (\d+)",
        read: |found| {
            let said = Said {
                status: -found[4].parse::<i64>().ok().filter(|signal| *signal < 65)?,
                host: Some(found[3].to_owned()),
                pid: found[2].parse().ok(),
            };
            Some(vec![(Who::Task(found[1].parse().ok()?), said)])
        },
    },
    // Source: open-mpi/ompi, help-mpi-api.txt; a communicator that is no copy of the first numbers others
    Form {
        literal: "MPI_ABORT was invoked on rank ",
        pattern: r"MPI_ABORT was invoked on rank (\d+) in communicator (?:MPI_COMM_WORLD|MPI COMMUNICATOR \d+ DUP FROM 0)(?: |$)",
        read: |found| Some(vec![(Who::Task(found[1].parse().ok()?), Said::code(1))]),
    },
    // Source: mpich/src/mpi/init/abort.c
    Form {
        literal: "application called MPI_Abort(",
        pattern: r"application called MPI_Abort\((?:MPI_COMM_WORLD|comm=0x44000000), (-?\d+)\) - process (\d+)",
        read: |found| {
            let code = found[1].parse().ok()?;
            Some(vec![(Who::Task(found[2].parse().ok()?), Said::code(code))])
        },
    },
    // Source: torch/multiprocessing/spawn.py, which raised a plain `Exception` before torch 1.8
    Form {
        literal: "Exception: process ",
        pattern: r"(?:^|\bProcessExited)Exception: process (\d+) terminated with (?:signal (\w+)|exit code (\d+))",
        read: |found| {
            let status = match (found.get(2), found.get(3)) {
                (Some(name), _) => -i64::from(signals::by_name(name.as_str())?.number),
                (_, code) => code?.as_str().parse().ok()?,
            };
            Some(vec![(
                Who::Local(found[1].parse().ok()?),
                Said {
                    status,
                    ..Said::default()
                },
            )])
        },
    },
    // Source: vllm/executor/multiproc_worker_utils.py
    Form {
        literal: " died, exit code: ",
        pattern: r"Worker \S+ pid (\d+) died, exit code: (-?\d+)$",
        read: |found| {
            let said = Said {
                status: found[2].parse().ok()?,
                pid: found[1].parse().ok(),
                host: None,
            };
            Some(vec![(Who::Unknown, said)])
        },
    },
    Form {
        literal: "-- Process ",
        pattern: r"^-- Process (\d+) terminated with the following error:",
        read: |found| {
            Some(vec![(
                Who::Local(found[1].parse().ok()?),
                Said {
                    status: 1,
                    ..Said::default()
                },
            )])
        },
    },
    // Source: lightning/fabric/strategies/launchers/subprocess_script.py, whose ranks are those on this host
    Form {
        literal: "Child process with PID ",
        pattern: r"\[rank: (\d+)\] Child process with PID (\d+) terminated with code (-?\d+)",
        read: |found| {
            let said = Said {
                status: found[3].parse().ok()?,
                pid: found[2].parse().ok(),
                host: None,
            };
            Some(vec![(Who::Local(found[1].parse().ok()?), said)])
        },
    },
    // Source: deepspeed/launcher/launch.py: the command that it shows, and that a terminal may break, is that of its last
    // process, whichever failed
    Form {
        literal: "exits with return code = ",
        // Source: pdsh(1), which puts the host before each line
        pattern: r"^(?:([\w.-]+): \[[\d :,-]+\] )?.*\] exits with return code = (-?\d+)",
        read: |found| {
            Some(vec![(
                Who::Unknown,
                Said {
                    status: found[2].parse().ok()?,
                    host: found.get(1).map(|host| host.as_str().to_owned()),
                    ..Said::default()
                },
            )])
        },
    },
    // Source: torch/distributed/launch.py before torchrun: the command is that of its last process, whichever failed
    Form {
        literal: "died with <Signals.",
        pattern: r"CalledProcessError: Command .*'--local_rank=\d+'.* died with <Signals\.(\w+): \d+>",
        read: |found| {
            Some(vec![(
                Who::Unknown,
                Said {
                    status: -i64::from(signals::by_name(&found[1])?.number),
                    ..Said::default()
                },
            )])
        },
    },
    // Source: bash, jobs.c, of a script's commands
    Form {
        literal: ": line ",
        pattern: r"^\S+: line \d+: +(\d+) ([A-Z][A-Za-z /]+?) *(\(core dumped\))? {2,}(.+)$",
        read: |found| {
            let status = described(&found[2])?;
            // The command may be a launcher: then it says nothing of a worker.
            let launchers = [
                "torchrun",
                "torch.distributed",
                "accelerate",
                "deepspeed",
                "srun",
                "mpirun",
                "mpiexec",
            ];
            let is_launcher = launchers.iter().any(|name| found[4].contains(name));
            let pid = found[1].parse().ok();
            (!is_launcher).then(|| {
                vec![(
                    Who::Unknown,
                    Said {
                        status,
                        pid,
                        host: None,
                    },
                )]
            })
        },
    },
];

fn forms() -> impl Iterator<Item = &'static Form> {
    let others = [
        composer::FORMS,
        crashes::FORMS,
        flux::FORMS,
        vendors::FORMS,
        horovod::FORMS,
        clouds::FORMS,
    ];
    FORMS.iter().chain(others.into_iter().flatten())
}

/// Returns what launchers say in a log of how processes ended, in its order.
pub(crate) fn exits(path: &Path, text: &str) -> Vec<Exit> {
    static PATTERNS: LazyLock<Vec<Regex>> = LazyLock::new(|| {
        let patterns = forms().map(|form| Regex::new(form.pattern));
        patterns
            .map(|pattern| pattern.expect("a constant"))
            .collect()
    });
    let has = |literal: &str| memchr::memmem::find(text.as_bytes(), literal.as_bytes()).is_some();
    let forms: Vec<(&Form, &Regex)> = forms()
        .zip(PATTERNS.iter())
        .filter(|(form, _)| has(form.literal))
        .collect();
    let (is_mpi, is_hydra) = (has("Process name: "), has("BAD TERMINATION"));
    let remain = TASKS_REMAIN.iter().any(|words| has(words));
    let mut found: Vec<Exit> = Vec::new();
    if !forms.is_empty() || is_mpi || is_hydra {
        let (mut ending, mut cancelled) = (false, false);
        let mut named = None;
        for (index, line) in text.lines().enumerate() {
            let line = line.trim_end();
            ending |= is_end_of_step(line);
            cancelled |= is_end_of_job(line);
            if let Some(signal) = signal_of_hydra(line).filter(|_| is_hydra) {
                let codes = found.iter_mut().filter(|exit| exit.status == signal);
                codes.for_each(|exit| exit.status = -signal);
            }
            let said = forms.iter().filter(|(form, _)| line.contains(form.literal));
            let said = said.filter_map(|(form, pattern)| (form.read)(&pattern.captures(line)?));
            let mut said: Vec<(Who, Said)> = said.flatten().collect();
            if is_mpi || is_hydra {
                said.extend(in_two_lines(line, &mut named));
            }
            for (who, said) in said {
                if found.len() >= MAX_EXITS || said.status == 0 || too_many(who) {
                    continue;
                }
                let asked = [-9, -15, 137, 143].contains(&said.status);
                let after_others = cancelled
                    || asked && (ending || found.iter().any(|exit| exit.status != said.status));
                found.push(Exit {
                    told_all: (ending || after_others) && !remain,
                    path: path.to_owned(),
                    line: index + 1,
                    who,
                    status: said.status,
                    host: said.host,
                    pid: said.pid,
                    after_others,
                });
            }
        }
    }
    crashes::drop_told_better(&mut found);
    if found.is_empty() {
        found.extend(of_shell(path, text));
    }
    found
}

/// Words of srun and slurmstepd on tasks that did not end when they were told to, or were lost with their host. Source: slurm/src/srun/libsrun/launch.c,
/// slurm/src/slurmd/slurmstepd
const TASKS_REMAIN: &[&str] = &[
    "Timed out waiting for job step to complete",
    "NOT ENDING WITH SIGNALS",
    " FAILURE, SEE SLURMCTLD LOG",
];

fn too_many(who: Who) -> bool {
    matches!(who, Who::Task(number) | Who::Local(number) | Who::Rank(number) if number >= MAX_TASK)
}

/// Whether a launcher begins to end all of its processes. Source: slurm/src/srun, slurmstepd; ALPS, aprun
fn is_end_of_step(line: &str) -> bool {
    const WORDS: &[&str] = &[
        "srun: Terminating StepId=",
        "srun: Terminating job step",
        "srun: Job step aborted",
        "srun: forcing job termination",
        "srun: Force Terminated",
        ": initiated application termination",
    ];
    WORDS.iter().any(|words| line.contains(words))
        || line.contains("slurmstepd: error: *** ") && line.contains(" CANCELLED AT ")
}

/// Whether the scheduler itself ends the job: a step may be cancelled because one of its tasks failed.
fn is_end_of_job(line: &str) -> bool {
    line.contains("slurmstepd: error: *** ")
        && line.contains(" CANCELLED AT ")
        && (line.contains("*** JOB ") || line.contains(" DUE TO "))
}

/// A shell's last word on its only command: `Segmentation fault (core dumped)`.
fn of_shell(path: &Path, text: &str) -> Option<Exit> {
    let count = text.lines().count();
    let last = text
        .lines()
        .enumerate()
        .skip(count.saturating_sub(LAST_LINES));
    let (index, status) =
        last.filter(|(_, line)| !line.starts_with(' '))
            .find_map(|(index, line)| {
                let words = line.trim_end().trim_end_matches("(core dumped)");
                // A request to end says nothing of a failure.
                let status = described(words.trim_end())?;
                let kills = status == -9 || crate::outcome::is_crash(status);
                kills.then_some((index, status))
            })?;
    Some(Exit {
        path: path.to_owned(),
        line: index + 1,
        who: Who::Unknown,
        status,
        host: None,
        pid: None,
        after_others: false,
        told_all: false,
    })
}

/// Reads how srun says that a task ended.
fn ended(text: &str) -> Option<i64> {
    let text = text.trim();
    if let Some(code) = text.strip_prefix("Exited with exit code ") {
        return code.trim().parse().ok();
    }
    if text == "Out Of Memory" {
        return Some(-9);
    }
    described(text.trim_end_matches("(core dumped)").trim_end())
}

/// The signal of a description as libc's `strsignal` gives it, as a status.
fn described(text: &str) -> Option<i64> {
    let signal = signals::SIGNALS
        .iter()
        .find(|signal| signal.description == text);
    signal.map(|signal| -i64::from(signal.number))
}

/// Reads `0-2,5`.
fn list(text: &str) -> Option<Vec<u32>> {
    let mut all = Vec::new();
    for part in text.split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to): (u32, u32) = (from.parse().ok()?, to.parse().ok()?);
        if from > to || to >= MAX_TASK {
            return None;
        }
        all.extend(from..=to);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<(Who, i64, bool)> {
        let found = exits(Path::new("a"), text).into_iter();
        found
            .map(|exit| (exit.who, exit.status, exit.after_others))
            .collect()
    }

    #[test]
    fn each_launchers_words() {
        use Who::{Local, Rank, Task, Unknown};
        for (text, expected) in [
            (
                "srun: error: node1: task 3: Segmentation fault (core dumped)",
                (Task(3), -11, false),
            ),
            (
                "srun: error: node1: task 3: Exited with exit code 1",
                (Task(3), 1, false),
            ),
            ("srun: error: node1: task 3: Killed", (Task(3), -9, false)),
            (
                "srun: error: node1: task 3: Out Of Memory",
                (Task(3), -9, false),
            ),
            (
                "mpirun noticed that process rank 3 with PID 4711 on node node1 exited on signal 11 (Segmentation fault).",
                (Task(3), -11, false),
            ),
            (
                "prterun noticed that process rank 3 with PID 4711 on node node1 exited on signal 9 (Killed).",
                (Task(3), -9, false),
            ),
            (
                "  Process name: [[26347,1],3]\n  Exit code:    7\n",
                (Task(3), 7, false),
            ),
            (
                "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   PID 4711 RUNNING AT node1\n=   EXIT CODE: 139\n",
                (Unknown, 139, false),
            ),
            (
                "[node1:4711] *** Process received signal ***\n[node1:4711] Signal: Segmentation fault (11)\n[node1:4711] Signal code: Address not mapped (1)\n",
                (Unknown, -11, false),
            ),
            (
                "[1,4]<stderr>:[node1:4711] Signal: Bus error (7)",
                (Task(4), -7, false),
            ),
            (
                "[node1:4711 :0:4733] Caught signal 7 (Bus error: nonexistent physical address)",
                (Unknown, -7, false),
            ),
            (
                "[node1:4711:0:4711] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x10)\nmpirun noticed that process rank 3 with PID 4711 on node node1 exited on signal 11 (Segmentation fault).",
                (Task(3), -11, false),
            ),
            (
                "torch.multiprocessing.spawn.ProcessExitedException: process 2 terminated with signal SIGSEGV",
                (Local(2), -11, false),
            ),
            (
                "torch.multiprocessing.spawn.ProcessExitedException: process 2 terminated with exit code 7",
                (Local(2), 7, false),
            ),
            (
                "Exception: process 0 terminated with signal SIGKILL",
                (Local(0), -9, false),
            ),
            (
                "Exception: process 1 terminated with exit code 17",
                (Local(1), 17, false),
            ),
            (
                "-- Process 1 terminated with the following error:",
                (Local(1), 1, false),
            ),
            (
                "MPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD",
                (Task(2), 1, false),
            ),
            (
                "MPI_ABORT was invoked on rank 2 in communicator MPI COMMUNICATOR 5 DUP FROM 0",
                (Task(2), 1, false),
            ),
            (
                "Abort(7) on node 3 (rank 3 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 7) - process 3",
                (Task(3), 7, false),
            ),
            (
                "=   PID 4711 RUNNING AT node1\n=   EXIT CODE: 9\n=   BAD TERMINATION\nYOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)",
                (Unknown, -9, false),
            ),
            (
                "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   RANK 3 PID 4711 RUNNING AT node1\n=   KILLED BY SIGNAL: 11 (Segmentation fault)\n",
                (Task(3), -11, false),
            ),
            (
                "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   RANK 3 PID 4711 RUNNING AT node1\n=   EXIT STATUS: 7\n",
                (Task(3), 7, false),
            ),
            (
                "ERROR 07-04 23:23:23 multiproc_worker_utils.py:120] Worker VllmWorkerProcess pid 4711 died, exit code: -11",
                (Unknown, -11, false),
            ),
            (
                "[rank: 1] Child process with PID 4711 terminated with code -11. Forcefully terminating all other processes to avoid zombies 🧟",
                (Local(1), -11, false),
            ),
            (
                "[2026-11-29 16:33:26,123] [ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python', '-u', 't.py', '--local_rank=3'] exits with return code = -9",
                (Unknown, -9, false),
            ),
            (
                "ckpt.bin', '--log_path', './log/'\n] exits with return code = -9",
                (Unknown, -9, false),
            ),
            (
                "ERROR:composer.cli.launcher:Rank 2 crashed with exit code -7.",
                (Rank(2), -7, false),
            ),
            (
                "2026-11-29 22:43:51,154 - composer.cli.launcher - ERROR - Rank 4 crashed with exit code -6.",
                (Rank(4), -6, false),
            ),
            (
                "Global rank 2 (PID 4711) exited with code 1",
                (Rank(2), 1, false),
            ),
            (
                "run.sh: line 3:  4711 Killed                  python train.py",
                (Unknown, -9, false),
            ),
            (
                "run.sh: line 3:  4711 Segmentation fault      (core dumped) python train.py",
                (Unknown, -11, false),
            ),
            (
                "step 1\nSegmentation fault (core dumped)",
                (Unknown, -11, false),
            ),
            (
                "x3006c0s13b1n0.hsn.example.org: rank 3 died from signal 11 and dumped core",
                (Task(3), -11, false),
            ),
            ("nid001: rank 3 exited with code 1", (Task(3), 1, false)),
            (
                "_pmiu_daemon(SIGCHLD): [NID 00123] [c0-0c1s2n3] [Sun Nov 29 16:33:26 2026] PE RANK 24 exit signal Segmentation fault",
                (Task(24), -11, false),
            ),
            (
                "ERROR:  One or more process (first noticed rank 3) terminated with signal 11 (core dumped)",
                (Task(3), -11, false),
            ),
            (
                "0.037s: flux-shell[0]: FATAL: task-exit: t.py: task rank 3 on host node1 failed and exit-on-error is set",
                (Task(3), 1, false),
            ),
            (
                "flux-shell[0]: FATAL: doom: t.py: rank 3 on host node1 exited and exit-timeout=30s has expired",
                (Task(3), 1, false),
            ),
            (
                "flux-job: task(s) exited with exit code 7",
                (Unknown, 7, false),
            ),
            (
                "flux-job: task(s) Segmentation fault",
                (Unknown, -11, false),
            ),
            (
                "Process 3 exit with status code 137.",
                (Rank(3), 137, false),
            ),
            (
                "The first process to do so was:\nProcess name: 3\nExit code: 7\n",
                (Rank(3), 7, false),
            ),
            (
                "message: \"The replica workerpool0-0 exited with a non-zero status of 139. Termination reason: Error.\"",
                (Unknown, 139, false),
            ),
            (
                "The replica worker 2 exited with a non-zero status of 1. Termination reason: Error. The replica worker 3 exited with a non-zero status of 1.",
                (Unknown, 1, false),
            ),
            (
                "  message:  \"Command '['python', '-m', u'trainer']' returned non-zero exit status -9\"",
                (Unknown, -9, false),
            ),
            (
                "\t(0) Abnormal termination (signal 11)",
                (Unknown, -11, false),
            ),
            (
                "\t(1) Normal termination (return value 7)",
                (Unknown, 7, false),
            ),
        ] {
            assert_eq!(read(text), [expected], "{text}");
        }
    }

    #[test]
    fn what_is_no_end_of_a_process() {
        for text in [
            "srun: error: task 3 launch failed: Invalid job credential",
            "srun: error: node1: task 3: Exited with exit code 0",
            "srun: error: node1: tasks 9-3: Killed",
            "srun: error: node1: tasks 0-99999999: Killed",
            "run.sh: line 3:  4711 Killed                  torchrun --nproc-per-node=4 train.py",
            "run.sh: line 3: python: command not found",
            "the OOM killer: Killed",
            "Fatal Python error: Segmentation fault",
            "mpirun noticed that process rank x exited",
            "Exit code:    7",
            "MPI_ABORT was invoked on rank 2 in communicator MPI COMMUNICATOR 5 SPLIT FROM 0",
            "raise Exception: process 0 terminated with signal SIGKILL",
            "Rank 2 crashed with exit code -7.",
            "I saw that Global rank 2 (PID 4711) exited with code 1",
            "RuntimeException: process 0 terminated with signal SIGKILL",
            "node1: rank 3 exited with code 0",
            "node1: rank 3 died from signal 99",
            "INFO node1: rank 3 exited with code 1 in the last run",
            "flux-job: task(s) Terminated",
            "flux-job: task(s) exited with exit code 143",
            "job.exception type=exec severity=0 t.py: task rank 3 on host node1 failed and exit-on-error is set",
            "Process 3 exit with status code 0.",
            "\t(1) Normal termination (return value 0)",
            "Process name: trainer\nExit code: 7",
        ] {
            assert_eq!(read(text), [], "{text}");
        }
    }

    #[test]
    fn who_ends_after_the_scheduler_ended_the_job_ends_because_of_that() {
        for (end, after) in [
            (
                "*** JOB 7 ON n CANCELLED AT 2026-11-29T20:00:00 DUE TO PREEMPTION ***",
                true,
            ),
            (
                "*** STEP 7.0 ON n CANCELLED AT 2026-11-29T20:00:00 DUE TO JOB REQUEUE ***",
                true,
            ),
            ("*** JOB 7 ON n CANCELLED AT 2026-11-29T20:00:00 ***", true),
            (
                "*** STEP 7.0 ON n CANCELLED AT 2026-11-29T20:00:00 ***",
                false,
            ),
        ] {
            let text = format!(
                "slurmstepd: error: {end}\nsrun: error: n: task 2: Exited with exit code 1"
            );
            assert_eq!(read(&text), [(Who::Task(2), 1, after)], "{end}");
        }
    }

    #[test]
    fn who_was_killed_after_others_was_killed_by_the_launcher() {
        let text = "srun: error: node1: task 3: Exited with exit code 1\nsrun: Terminating StepId=4711.0\nsrun: error: node0: tasks 0-1: Killed\nsrun: error: node1: task 2: Terminated\n";
        let after: Vec<bool> = read(text).iter().map(|exit| exit.2).collect();
        assert_eq!(after, [false, true, true, true]);
        let text = "srun: error: node1: task 3: Killed\nsrun: Terminating StepId=4711.0\nsrun: error: node0: tasks 0-1: Killed\n";
        let after: Vec<bool> = read(text).iter().map(|exit| exit.2).collect();
        assert_eq!(after, [false, true, true]);
    }
}
