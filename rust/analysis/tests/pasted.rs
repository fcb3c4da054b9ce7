//! Logs as people paste them: heads cut off, margins lost, lines broken, words without a traceback.

mod common;

use common::{Job, PEER, cause};
use firstfault_analysis::schema::Confidence;
use firstfault_analysis::{ErrorKind, Options, Report, analyze};

const FRAMES: &str = "  File \"/data/envs/train/lib/python3.10/site-packages/torch/serialization.py\", line 604, in _save\n    zip_file.write_record(name, storage, num_bytes)\n";
const START: &str = "Traceback (most recent call last):\n";
const FULL: &str = "OSError: [Errno 28] No space left on device\n";

fn report(name: &str, text: &str) -> Report {
    let job = Job::new("pasted");
    job.write(name, text);
    job.report()
}

fn prefixed(margin: &str, text: &str) -> String {
    text.lines()
        .map(|line| format!("{margin}{line}\n"))
        .collect()
}

#[test]
fn a_stack_without_its_first_line_is_one() {
    for text in [
        format!("{FRAMES}{FULL}"),
        format!("step 1\n{FRAMES}{FULL}"),
        FULL.to_owned(),
    ] {
        let found = report("paste.txt", &text);
        assert_eq!(cause(&found).1, "disk_full", "{text}");
        assert!(cause(&found).2 < Confidence::High);
    }
    let labelled = prefixed("[rank3]: ", &format!("{FRAMES}{FULL}"));
    assert_eq!(cause(&report("paste.txt", &labelled)).0, Some(3));
}

#[test]
fn a_line_that_looks_like_an_exception_in_passing_is_no_end() {
    let job = Job::new("passing");
    job.write("train.log", format!("{FULL}{}", "step\n".repeat(90)));
    let found = analyze(std::slice::from_ref(&job.0), &Options::default());
    assert!(found.is_err_and(|error| matches!(error.kind(), ErrorKind::NothingFound)));
}

#[test]
fn any_margin_before_each_line_is_taken_off() {
    let text = format!("step 1\n{START}{FRAMES}{FULL}");
    for margin in [
        "[stderr]",
        "675d-5: ",
        "07:41 [task/5 (pid 9)] [09c561ee] ",
        "worker> ",
    ] {
        let found = report("job.out", &prefixed(margin, &text));
        assert_eq!(cause(&found).1, "disk_full", "{margin}");
    }
    let found = report("job.out", &prefixed("gpu-12: ", &text));
    assert_eq!(found.root_cause.expect("a cause").host, "gpu-12");
}

#[test]
fn lines_that_a_terminal_broke_are_put_together() {
    let mut broken = String::new();
    for line in format!("{START}{FRAMES}{FULL}").lines() {
        let chars: Vec<char> = line.chars().collect();
        for part in chars.chunks(88) {
            broken.extend(part);
            broken.push('\n');
        }
    }
    let found = report("terminal.txt", &broken);
    assert_eq!(cause(&found).1, "disk_full");
    let told = found.groups[0].example.location.clone();
    assert!(
        told.starts_with("in _save (torch/serialization.py:604)"),
        "{told}"
    );
}

#[test]
fn a_stack_without_its_indentation_is_one() {
    let flush: String = format!("{START}{FRAMES}{FULL}")
        .lines()
        .map(|line| format!("{}\n", line.trim()))
        .collect();
    let found = report("chat.txt", &flush);
    assert_eq!(cause(&found).1, "disk_full");
    assert!(
        found.groups[0]
            .example
            .location
            .contains("serialization.py:604")
    );
}

#[test]
fn two_ranks_that_print_in_turns_tell_one_failure() {
    let twice = |text: &str| -> String {
        text.lines()
            .map(|line| format!("{line}\n{line}\n"))
            .collect()
    };
    let text = twice(&format!(
        "{START}{FRAMES}RuntimeError: CUDA error: invalid device ordinal\n"
    ));
    let found = report("slurm-1.err", &text);
    assert_eq!((cause(&found).0, cause(&found).1), (None, "config_error"));
}

#[test]
fn words_that_nothing_gives_to_a_rank_are_better_than_none() {
    for (line, category) in [
        (
            "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
            "shared_memory_exhausted",
        ),
        (
            "node-b:983:1402 [3] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.0.1<5592> with status=12 opcode=1 len=0 vendor err 129",
            "network_error",
        ),
        (
            "2026-05-19 [ERROR] breaker: Detected mismatch between collectives on ranks. Rank 4 is running collective: X",
            "collective_mismatch",
        ),
        (
            "*** Error in `/v/bin/python': double free or corruption (!prev): 0x55bb ***",
            "heap_corruption",
        ),
        (
            "NCCL INFO socketPollConnect: connect to 10.0.0.8<5233> returned Connection refused, retrying (34/34)",
            "never_arrived",
        ),
    ] {
        let found = report("train.log", &format!("step 1\n{line}\n"));
        assert_eq!(
            (cause(&found).0, cause(&found).1),
            (None, category),
            "{line}"
        );
        assert!(cause(&found).2 < Confidence::High, "{line}");
        let root = found.root_cause.expect("a cause");
        assert!(
            root.evidence
                .iter()
                .any(|told| told.contains("train.log:2")),
            "{:?}",
            root.evidence
        );
    }
}

#[test]
fn a_status_is_explained_by_words_that_nothing_gives_to_a_rank() {
    let stacks = "ImportError: ImportError/v/flash.so: undefined \nsymbol: _ZN3c10:\n/v/flash.so: undefined symbol: _ZN3c10\n";
    let entry = |rank: u32| {
        format!(
            "[{rank}]:\n  time      : 2026-11-29_16:33:26\n  host      : n\n  rank      : {rank} (local_rank: {rank})\n  exitcode  : 1 (pid: 4{rank})\n  error_file: <N/A>\n  traceback : -\n"
        )
    };
    let summary = format!(
        "Failures:\n{}------\nRoot Cause (first observed failure):\n{}=====\n",
        entry(1),
        entry(0)
    );
    let found = report("console.log", &format!("{stacks}{summary}"));
    assert_eq!(cause(&found), (None, "abi_error", Confidence::Low));
}

#[test]
fn the_launchers_own_exception_is_told_where_it_tells_of_no_worker() {
    let lost = format!(
        "{START}  File \"/v/torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py\", line 155, in _create_tcp_store\n    store = TCPStore(\nRuntimeError: connect() timed out. Original timeout was 60000 ms.\n\n\
         The above exception was the direct cause of the following exception:\n\n{START}  File \"/v/torch/distributed/run.py\", line 719, in main\n    run(args)\n\
         torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed. See inner exception for details.\n"
    );
    assert_eq!(cause(&report("agent.err", &lost)).1, "rendezvous_failed");
}

#[test]
fn an_old_launchers_command_is_that_of_its_last_process() {
    let text = format!(
        "{START}  File \"/v/torch/distributed/launch.py\", line 259, in main\n    cmd=cmd)\nsubprocess.CalledProcessError: Command '['/v/python3', '-u', 't.py', '--local_rank=7']' died with <Signals.SIGSEGV: 11>.\n"
    );
    let found = report("stderr.txt", &text);
    assert_eq!((cause(&found).0, cause(&found).1), (None, "segfault"));
}

#[test]
fn a_local_label_of_several_hosts_is_of_the_rank_that_ended() {
    let mismatch = "[default0]:terminate called after throwing an instance of 'gloo::EnforceNotMet'\n[default0]:  what():  [enforce fail] 6400 vs 64. Is there a distributed collective mismatch in your code?\n";
    let victims: String = [1, 3]
        .map(|rank| {
            prefixed(
                &format!("[default1]:[rank{rank}]: "),
                &format!("{START}{FRAMES}{PEER}"),
            )
        })
        .concat();
    let failed = "E1129 16:33:27.4 18 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -6) local_rank: 0 (pid: 23) of binary: /v/python\n";
    let found = report("console.log", &format!("{mismatch}{victims}{failed}"));
    assert_eq!(
        cause(&found),
        (None, "collective_mismatch", Confidence::Low)
    );
}

#[test]
fn an_abort_on_the_way_out_is_not_what_ended_the_rank() {
    let text = format!(
        "{START}{FRAMES}RuntimeError: CUDA error: device-side assert triggered\nterminate called after throwing an instance of 'c10::Error'\n  what():  NCCL error in: x.hpp:181, unhandled cuda error, NCCL version 21.0.3\n"
    );
    assert_eq!(cause(&report("rank0.log", &text)).1, "device_assert");
}

#[test]
fn the_same_words_of_many_are_alike_however_much_of_their_stacks_is_left() {
    let error = "RuntimeError: the disk of all is full\n";
    let other = "  File \"/j/train.py\", line 3, in main\n    save()\n";
    let whole = format!("{START}{other}{FRAMES}{error}");
    let text = prefixed("[rank2]: ", &format!("{FRAMES}{error}")) + &prefixed("[rank3]: ", &whole);
    let alike = report("paste.txt", &text);
    assert_eq!(cause(&alike).0, None);
    assert!(cause(&alike).2 < Confidence::High);
    let apart = text.replacen("of all", "of one", 1);
    assert!(cause(&report("paste.txt", &apart)).0.is_some());
}

#[test]
fn a_tag_of_mpirun_tells_the_rank_and_nccl_its_host() {
    let line = "node-7:812:864 [0] NCCL INFO init.cc:867 -> 5\n";
    let text = prefixed("[1,3]<stdout>:", line)
        + &prefixed("[1,3]<stderr>:", &format!("{START}{FRAMES}{FULL}"));
    let found = report("mpi.log", &text);
    assert_eq!(cause(&found).0, Some(3));
    assert_eq!(found.root_cause.unwrap().host, "node-7");
}

#[test]
fn nccls_warning_says_more_than_the_code_that_it_returns() {
    let full = "node-b:983:1402 [3] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'\n";
    let proxy = "node-b:980:1399 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer node-b<51159>\n";
    let code = "torch.distributed.DistBackendError: NCCL error in: x.cpp:1333, internal error - please report this issue to the NCCL developers, NCCL version 2.18.1\nncclInternalError: Internal check failed.\n";
    let error = format!("{START}  File \"t.py\", line 1, in main\n{code}");
    // As torch says of each first try, which a later one makes good.
    let retried = "[W socket.cpp:601] [c10d] The client socket has failed to connect to [localhost]:29500 (errno: 99 - Cannot assign requested address).\n";
    for text in [
        format!("{retried}{full}{error}"),
        format!("{full}{proxy}{error}"),
        format!("{proxy}{full}{error}"),
        format!("{error}{proxy}{full}"),
    ] {
        let found = report("nccl.log", &text);
        assert_eq!(cause(&found).1, "cuda_out_of_memory", "{text}");
        assert!(cause(&found).2 < Confidence::High);
        let evidence = found.root_cause.unwrap().evidence.join("\n");
        assert!(evidence.contains("[3] include/alloc.h:178"), "{evidence}");
    }
    // What only tells of a lost peer, and what follows an error that says itself what it is, change nothing.
    let found = report("nccl.log", &format!("{proxy}{error}"));
    assert_eq!(cause(&found).1, "nccl_internal_error");
    let own = format!("{full}{START}  File \"t.py\", line 1, in main\nValueError: bad batch\n");
    assert_eq!(cause(&report("nccl.log", &own)).1, "python_exception");
}
