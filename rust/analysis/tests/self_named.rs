//! What says itself whose it is: heads of tracebacks, a process's own rank, a launcher's word on a worker; and jobs of
//! which nothing began.

mod common;

use common::{Job, cause};
use firstfault_analysis::Report;
use firstfault_analysis::schema::Confidence;

const STACK: &str = "Traceback (most recent call last):\n  File \"/j/scheduler.py\", line 40, in load\n    raise E\n";
const LOST: &str = "RuntimeError: [/g/pair.cc:553] Connection closed by peer [10.0.0.2]:40339.";

fn report(files: &[(&str, String)]) -> Report {
    let job = Job::new("self-named");
    for (name, text) in files {
        job.write(name, text);
    }
    job.report()
}

fn server(head: &str, error: &str) -> String {
    format!("{head}{STACK}{error}\n\n")
}

fn labelled(label: &str, error: &str) -> String {
    let text = format!("{STACK}{error}\n");
    text.lines()
        .map(|line| format!("{label}{line}\n"))
        .collect()
}

#[test]
fn the_head_of_a_traceback_tells_whose_it_is() {
    let of_tp = |margin: &str, error: &str| {
        server(&format!("[{margin}] Scheduler hit an exception: "), error)
    };
    let of_rank = |rank: u32, error: &str| {
        let head = format!(
            "2026-11-29 10:42:00,218 - lmdeploy - ERROR - model_agent.py:489 - Rank[{rank}] failed.\n"
        );
        server(&head, error)
    };
    let value = "ValueError: no such layer: 7";
    let cases = [
        (of_tp("2026-11-29 18:11:31 TP2", value), Some(2)),
        (of_tp(" TP3", value), Some(3)),
        (of_tp("2026-11-29 18:11:31 PP0 TP1", value), Some(1)),
        (of_tp("2026-11-29 18:11:31 DP1 TP9 EP9", value), Some(9)),
        // Of the second stage the number is that of its group alone.
        (of_tp("2026-11-29 18:11:31 PP1 TP1", value), None),
        (of_rank(2, value), Some(2)),
        (
            of_tp("2026-11-29 18:11:31 TP0", LOST) + &of_tp("2026-11-29 18:11:31 TP1", value),
            Some(1),
        ),
        (of_rank(1, value) + &of_rank(0, LOST), Some(1)),
    ];
    for (text, expected) in cases {
        let log = format!(
            "[2026-11-29 18:11:12] server_args=ServerArgs()\n{text}[2026-11-29 18:11:32] Received sigquit from a child process.\n"
        );
        let report = report(&[("server.log", log)]);
        assert_eq!(
            (cause(&report).0, cause(&report).1),
            (expected, "python_exception"),
            "{text}"
        );
    }
}

#[test]
fn what_follows_a_headed_traceback_is_not_its_ranks() {
    let head = "[2026-11-29 18:11:31 TP1] Scheduler hit an exception: ";
    let log = format!(
        "{}[2026-11-29 18:11:32 TP0] waits\n{STACK}{LOST}\n",
        server(head, "KeyError: 'a'")
    );
    let report = report(&[("server.log", log)]);
    assert_eq!(cause(&report).0, Some(1));
    let shown = report.root_cause.expect("a cause");
    assert!(shown.title.contains("KeyError"), "{}", shown.title);
}

#[test]
fn a_process_that_gives_itself_a_rank_has_it() {
    let added = |rank: u32| {
        format!("INFO Added key: store_based_barrier_key:1 to store for rank: {rank}\n")
    };
    let step = |rank: u32| {
        format!(
            "DEBUG Batch 1/0 loss 11.3 lr 0.07 rank {rank}\nDEBUG Batch 1/100 loss 9.1 lr 0.07 rank {rank}\n"
        )
    };
    let read = "tarfile.ReadError: ('unexpected end of data', {'__url__': 'a.tar', '__rank__': '(18, 32)'})";
    let value = "ValueError: no such layer: 7";
    for (name, before, error, expected) in [
        ("worker-3.log", added(3), value, Some(3)),
        ("worker-5.log", step(5), value, Some(5)),
        ("worker-1.log", String::new(), read, Some(18)),
        // The first may be the only one that logs, others may be named, and a name alone may be a host's.
        ("worker-0.log", added(0), value, None),
        ("worker-3.log", added(3) + &added(2), value, None),
        ("worker-1.log", added(4), value, None),
        (
            "worker-5.log",
            step(5).replace("rank", "node_rank="),
            value,
            None,
        ),
        ("worker-5.log", step(5) + &step(4), value, None),
        ("worker-5.log", step(6), value, None),
        ("node-5.log", step(5), value, None),
        ("worker-0.log", step(0), value, None),
    ] {
        let report = report(&[(name, format!("{before}{STACK}{error}\n"))]);
        assert_eq!(cause(&report).0, expected, "{name} {before}");
        assert!(cause(&report).2 < Confidence::High);
    }
}

#[test]
fn a_launchers_word_on_a_worker_stands_where_the_others_go_on_to_wait() {
    let wait = |minute: u32| {
        format!(
            "DEBUG 07-04 17:{minute}:10 [shm_broadcast.py:456] No available block found in 60 second.\n"
        )
    };
    let died = "ERROR 07-04 17:35:16 [multiproc_executor.py:140] Worker proc VllmWorker-1 died unexpectedly, shutting down executor.\n";
    let waits: String = (36..44).map(wait).collect();
    let log = format!("{}{died}{waits}", wait(35));
    let found = report(&[("server.log", log)]);
    assert_eq!(cause(&found), (Some(1), "killed_unknown", Confidence::Low));
}

#[test]
fn a_step_whose_program_is_not_there_has_no_culprit() {
    let missing = "slurmstepd: error: execve(): torchrun: No such file or directory\n";
    let ended = |tasks: &str| format!("srun: error: node1: {tasks}: Exited with exit code 2\n");
    let alone = report(&[("slurm-1.out", format!("{missing}{}", ended("task 0")))]);
    assert_eq!((cause(&alone).0, cause(&alone).1), (None, "missing_file"));
    let all = report(&[(
        "slurm-1.out",
        format!("{missing}{missing}{}", ended("tasks 0-1")),
    )]);
    assert_eq!((cause(&all).0, cause(&all).1), (None, "missing_file"));
    // A step before the one that ran, and failed by something else.
    let later = "epoch 1 step 100 loss 2.3\nsrun: error: node1: task 2: Killed\n";
    let before = report(&[("slurm-1.out", format!("{missing}{later}"))]);
    assert_eq!(
        (cause(&before).0, cause(&before).1),
        (Some(2), "killed_unknown")
    );
    assert!(cause(&before).2 < Confidence::High);
    // One host lacks it.
    let log = format!(
        "{missing}{}slurmstepd: error: *** STEP 1.0 ON node0 CANCELLED AT 2026-11-29T10:00:00 ***\nsrun: error: node0: task 0: Terminated\n",
        ended("task 1")
    );
    let one = report(&[("slurm-1.out", log)]);
    assert_eq!((cause(&one).0, cause(&one).1), (Some(1), "missing_file"));
}

#[test]
fn a_host_says_why_no_daemon_began() {
    let orte = "ORTE was unable to reliably start one or more daemons.\n";
    let name = "ssh: Could not resolve hostname node9: Temporary failure in name resolution\n";
    let why = report(&[("mpi.log", format!("{name}{orte}"))]);
    assert_eq!(cause(&why), (None, "dns_failure", Confidence::Medium));
    let bare = report(&[("mpi.log", orte.to_owned())]);
    assert_eq!(cause(&bare), (None, "never_arrived", Confidence::High));
}

#[test]
fn two_ranks_that_happen_to_be_shown_make_no_suspects_of_those_between() {
    let mesh = "RuntimeError: Gloo connectFullMesh failed with [/g/pair.cc:144] no error";
    let two = report(&[(
        "paste.txt",
        labelled("[rank0]: ", mesh) + &labelled("[rank3]: ", mesh),
    )]);
    assert_eq!((cause(&two).0, cause(&two).1), (None, "rendezvous_failed"));
    assert_eq!(two.suspects, []);
}

#[test]
fn a_watchdogs_line_behind_a_progress_bar_is_its_ranks() {
    let waits = |rank: u32, number: u32, operation: &str| {
        format!(
            "[E ProcessGroupNCCL.cpp:828] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={number}, OpType={operation}, Timeout(ms)=1800000) ran for 1807737 milliseconds before timing out.\n"
        )
    };
    let bar = " 98%|█████████▊| 599/611 [01:50<00:01,  8.76it/s]";
    let log = format!(
        "{bar}{}{}{}{}",
        waits(1, 1803, "ALLREDUCE"),
        waits(2, 1803, "ALLGATHER"),
        waits(0, 1803, "ALLREDUCE"),
        waits(3, 1803, "ALLREDUCE")
    );
    let found = report(&[("train.log", log)]);
    assert_eq!(
        (cause(&found).0, cause(&found).1),
        (None, "collective_mismatch")
    );
    assert_eq!(found.ranks.collateral, "0-3");
    let suspects: Vec<_> = found.suspects.iter().map(|it| it.rank).collect();
    assert_eq!(suspects, [2]);
    // A pair's two operations are no mismatch.
    let pair = waits(0, 901, "SEND") + &waits(1, 901, "RECV");
    assert_ne!(
        cause(&report(&[("train.log", pair)])).1,
        "collective_mismatch"
    );
    // A rank that is not shown is no surer than those that are behind.
    let uneven =
        waits(2, 41, "ALLREDUCE") + &waits(3, 41, "ALLREDUCE") + &waits(1, 42, "ALLREDUCE");
    let found = report(&[("train.log", uneven)]);
    assert_eq!(cause(&found).0, None);
    let even = waits(2, 41, "ALLREDUCE") + &waits(3, 41, "ALLREDUCE") + &waits(1, 41, "ALLREDUCE");
    assert_eq!(cause(&report(&[("train.log", even)])).0, Some(0));
}

#[test]
fn labels_of_local_ranks_tell_failures_apart_where_nothing_else_tells() {
    let log =
        labelled("[default1]:", LOST) + &labelled("[default0]:", "ValueError: no such layer: 7");
    let found = report(&[("host_0.output", log)]);
    assert_eq!(cause(&found).1, "python_exception");
    assert!(cause(&found).2 < Confidence::High);
}

#[test]
fn a_part_of_a_log_in_which_all_fail_alike_names_nobody() {
    let assertion =
        "AssertionError: num_layers should be divisible by pipeline_model_parallel_size";
    let part = labelled("[rank2]: ", assertion) + &labelled("[rank15]: ", assertion);
    assert_eq!(cause(&report(&[("slurm-1.out", part)])).0, None);
    // With the number of the ranks known, two are few.
    let job = Job::new("two-of-many");
    job.write(
        "slurm-1.out",
        labelled("[rank2]: ", assertion) + &labelled("[rank15]: ", assertion),
    );
    let mut options = firstfault_analysis::Options::default();
    options.world_size = Some(16);
    let found =
        firstfault_analysis::analyze(std::slice::from_ref(&job.0), &options).expect("a report");
    assert_eq!(cause(&found).0, Some(2));
}

#[test]
fn a_launcher_whose_terminal_is_closed_is_not_preempted() {
    for (signal, number, category) in [
        ("SIGHUP", 1, "launcher_terminated"),
        ("SIGTERM", 15, "preempted"),
        ("SIGINT", 2, "interrupted"),
    ] {
        let log = format!(
            "W0416 15:47:02.118000 41 torch/distributed/elastic/agent/server/api.py:741] Received Signals.{signal} death signal, shutting down workers\n\
             torch.distributed.elastic.multiprocessing.api.SignalException: Process 41 got signal: {number}\n"
        );
        assert_eq!(cause(&report(&[("nohup.out", log)])).1, category);
    }
}

#[test]
fn the_last_error_of_nccl_says_more_than_its_code() {
    let text = format!(
        "{STACK}torch.distributed.DistBackendError: NCCL error in: /p/NCCLUtils.cpp:94, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n"
    );
    let of = |last: &str| {
        cause(&report(&[("train.log", format!("{text}{last}\n"))]))
            .1
            .to_owned()
    };
    assert_eq!(
        of("Failed to CUDA calloc 6291456 bytes"),
        "cuda_out_of_memory"
    );
    assert_eq!(of("Cuda failure 'invalid argument'"), "nccl_system_error");
    // So little is not what lacked, and NCCL's warning says more.
    assert_eq!(
        of("Failed to CUDA calloc async 608 bytes"),
        "nccl_system_error"
    );
    let alike: String = (0..4)
        .map(|rank| {
            let text = format!("{text}Failed to CUDA calloc 6291456 bytes\n");
            text.lines()
                .map(|line| format!("[rank{rank}]: {line}\n"))
                .collect::<String>()
        })
        .collect();
    assert!(cause(&report(&[("train.log", alike)])).2 < Confidence::High);
    let ray = format!(
        "{STACK}ray.exceptions.RayTaskError(DistBackendError): ray::Actor.train() (pid=41, ip=10.0.0.3)\n  File \"/j/a.py\", line 3, in train\n    return f()\n{}",
        &text[STACK.len()..]
    );
    let found = report(&[(
        "train.log",
        format!("{ray}Failed to CUDA calloc 6291456 bytes\n"),
    )]);
    assert_eq!(cause(&found).1, "cuda_out_of_memory");
}

#[test]
fn a_launchers_status_is_explained_by_the_only_traceback_among_the_words_of_several() {
    let left = "[2024-01-20 10:15:30,848] [INFO] [launch.py:315:sigkill_handler] Killing subprocess 41\n10.0.0.3: [2024-01-20 10:15:31,004] [ERROR] [launch.py:321:sigkill_handler] ['python', '-u', 't.py'] exits with return code = 1\n";
    let port = "RuntimeError: The server socket has failed to bind to [::]:29700 (errno: 98 - Address already in use).";
    let others = "[2024-01-20 10:15:29,822] [INFO] [comm.py:637:init_distributed] cdb=None\n";
    let of = |words: &str| {
        cause(&report(&[("server.log", format!("{words}{left}"))]))
            .1
            .to_owned()
    };
    assert_eq!(
        of(&format!("{STACK}{port}\n{}", others.repeat(3))),
        "port_in_use"
    );
    // What much follows was survived.
    let long: String = (0..60)
        .map(|step| format!("loading shard {step} of layer\n"))
        .collect();
    assert_eq!(
        of(&format!("{STACK}{port}\n{long}")),
        "exit_without_traceback"
    );
    let found = report(&[("server.log", left.to_owned())]);
    assert_eq!(found.root_cause.expect("a cause").host, "10.0.0.3");
}

#[test]
fn whom_a_barrier_let_down_is_told_above_the_programs_own_exception() {
    let log = |rank: u32| {
        let line = format!(
            "[rank{rank}]:[E421 04:13:43.4 ProcessGroupGloo.cpp:143] Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 5. Please check rank 5 logs for faulty rank.\n"
        );
        let error = format!(
            "ValueError: TP rank {rank} could finish the model loading, but there are other ranks that didn't finish loading. It is likely due to unexpected failures (e.g., OOM) or a slow node."
        );
        line + &server(
            &format!("[2025-04-21 04:13:43 TP{rank}] Scheduler hit an exception: "),
            &error,
        )
    };
    let found = report(&[("server.log", log(3) + &log(6))]);
    assert_eq!(cause(&found).0, Some(5), "{:?}", found.root_cause);
}

#[test]
fn a_rank_that_only_warned_takes_the_traceback_that_its_launcher_shows() {
    let warned = "[rank0]:[W831 16:10:20.9 ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT been destroyed before we destruct ProcessGroupNCCL.\n";
    let spawned = format!(
        "{STACK}torch.multiprocessing.spawn.ProcessRaisedException: \n\n-- Process 0 terminated with the following error:\n{STACK}ValueError: no such layer: 7\n"
    );
    let found = report(&[("train.log", format!("{warned}{spawned}"))]);
    assert_eq!(
        (cause(&found).0, cause(&found).1),
        (Some(0), "python_exception")
    );
}
