//! One log of all tasks, marked as by `srun --label`: whose the lines are, and what srun says of tasks by saying nothing.

mod common;

use common::{Job, PEER, cause};
use firstfault_analysis::schema::Confidence;

const TIMEOUT: &str =
    "RuntimeError: [unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation to complete";
const MISMATCH: &str = "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at pair.cc:446] op.preamble.length <= op.nbytes. 64 vs 8";

fn labelled(label: &str, text: &str) -> String {
    text.lines()
        .map(|line| format!("{label}{line}\n"))
        .collect()
}

fn traceback(error: &str) -> String {
    format!(
        "Traceback (most recent call last):\n  File \"/j/train.py\", line 9, in main\n    step()\n{error}\n"
    )
}

/// What torch's hook prints of some ranks, under the numbers of their tasks.
fn hooked(ranks: &[(u32, u32)], error: &str) -> String {
    let one =
        |(task, rank): &(u32, u32)| labelled(&format!("{task}: [rank{rank}]: "), &traceback(error));
    ranks.iter().map(one).collect()
}

/// What srun says of tasks of two on each node.
fn ended(tasks: &[(u32, &str)]) -> String {
    let one =
        |(task, how): &(u32, &str)| format!("srun: error: node{}: task {task}: {how}\n", task / 2);
    let lines: Vec<String> = tasks.iter().map(one).collect();
    let (first, rest) = lines.split_first().expect("a task");
    format!("{first}srun: Terminating StepId=4711.0\n{}", rest.concat())
}

fn report(text: &str) -> firstfault_analysis::Report {
    let job = Job::new("tasks");
    job.write("slurm-4711.out", text);
    job.report()
}

const FAILED: &str = "Exited with exit code 1";

#[test]
fn a_task_is_the_rank_that_torch_calls_by_its_number() {
    for (words, how, category) in [
        (MISMATCH, "Aborted", "collective_mismatch"),
        ("free(): invalid pointer", "Aborted", "heap_corruption"),
        (
            "Fatal Python error: Segmentation fault",
            "Segmentation fault",
            "segfault",
        ),
    ] {
        let text = labelled("0: ", "step 1\nstep 2\n")
            + &labelled("1: ", words)
            + &hooked(&[(0, 0), (2, 2), (3, 3)], PEER)
            + &ended(&[(1, how), (0, FAILED), (2, FAILED), (3, "Terminated")]);
        let found = report(&text);
        let category_found = cause(&found).1;
        assert_eq!(category_found, category);
        let told = format!("{:?}", found.root_cause);
        assert!(told.contains("slurm-4711.out:3"), "{told}");
        assert!(!found.incomplete.join("\n").contains("labels do not tell"));
    }
}

#[test]
fn a_task_in_which_several_ranks_speak_is_a_host() {
    let words = "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n  File \"t.py\", line 1 in main\n";
    let text = hooked(&[(0, 0), (0, 1), (1, 2)], PEER) + &labelled("1: ", words);
    let found = report(&text);
    assert_ne!(cause(&found).0, Some(1));
    // The first rank of the first host is no proof.
    let found = report(&(hooked(&[(0, 0)], PEER) + &labelled("1: ", words)));
    assert_ne!(cause(&found).0, Some(1));
}

#[test]
fn a_task_of_whose_end_srun_tells_nothing_ended_well() {
    let all = labelled("0: ", "step 1\nstep 2\n") + &labelled("1: ", "nothing left to do\n");
    let others = [(0, FAILED), (2, FAILED), (3, "Terminated")];
    let lost = hooked(&[(0, 0), (2, 2), (3, 3)], PEER);
    let found = report(&(all.clone() + &lost + &ended(&others)));
    assert_eq!(cause(&found), (Some(1), "left_early", Confidence::Medium));
    // A rank that the others waited for may still be there.
    let waited = hooked(&[(0, 0), (2, 2), (3, 3)], TIMEOUT);
    let found = report(&(all.clone() + &waited + &ended(&others)));
    assert_eq!(cause(&found), (Some(1), "hang", Confidence::Medium));
    // Before the step is ended, and of a task more that is not told of, nothing follows.
    let running = ended(&others).lines().next().expect("a line").to_owned() + "\n";
    for words in [running, ended(&others[..2])] {
        let found = report(&(all.clone() + &lost + &words));
        assert_ne!(cause(&found).1, "left_early");
    }
    // That the step ends is told as well where each of the others had failed before it was asked to.
    let failed = [(0, FAILED), (2, FAILED), (3, FAILED)];
    let found = report(&(all.clone() + &lost + &ended(&failed)));
    assert_eq!(cause(&found), (Some(1), "left_early", Confidence::Medium));
    // Who was ended with it ran until then.
    let two = hooked(&[(0, 0), (2, 2)], PEER);
    let found = report(&(all.clone() + &two + &ended(&others)));
    assert_eq!(cause(&found), (Some(1), "left_early", Confidence::Medium));
    // Nor where tasks or hosts are left that did not end as they were told to.
    for words in [
        "srun: error: Node failure on node0\n",
        "srun: error: Timed out waiting for job step to complete\n",
        "slurmstepd: error: *** STEP 4711.0 STEPD TERMINATED ON node0 AT 2026-11-30T14:00:00 DUE TO JOB NOT ENDING WITH SIGNALS ***\n",
    ] {
        let found = report(&(all.clone() + &lost + &ended(&others) + words));
        assert_ne!(cause(&found).1, "left_early", "{words}");
    }
    // Nor of one that never spoke.
    let found = report(&(lost + &ended(&others)));
    assert_ne!(cause(&found).1, "left_early");
}

#[test]
fn tasks_that_were_all_asked_to_end_were_ended_from_outside() {
    let text = labelled("0: ", "step 1\nstep 2\n");
    let asked: Vec<(u32, &str)> = (0..4).map(|task| (task, "Terminated")).collect();
    let found = report(&(text.clone() + &ended(&asked)));
    assert_eq!(cause(&found), (None, "killed_unknown", Confidence::Low));
    assert_eq!(found.ranks.terminated, "0-3");
    // With one that failed it is that one.
    let mut failed = asked;
    failed[0] = (2, "Exited with exit code 7");
    let found = report(&(text + &ended(&failed)));
    assert_eq!(cause(&found).0, Some(2));
}

#[test]
fn who_ended_by_a_hangup_was_not_ended_by_srun() {
    let text = hooked(&[(1, 1), (2, 2), (3, 3)], PEER) + "0: step 1\n";
    let how = [(0, "Hangup"), (1, FAILED), (3, FAILED), (2, "Terminated")];
    let found = report(&(text + &ended(&how)));
    assert_eq!(
        (cause(&found).0, cause(&found).1),
        (Some(0), "killed_unknown")
    );
    let told = found.root_cause.expect("a cause").title;
    assert!(told.contains("sender unknown"), "{told}");
}

#[test]
fn launchers_under_srun_are_told_apart_by_their_tasks() {
    const ELASTIC: &str = "torch/distributed/elastic/multiprocessing/api.py";
    let entry = |rank: u32| {
        format!(
            "[0]:\n  time      : 2026-11-29_16:33:26\n  host      : node0\n  rank      : {rank} (local_rank: {rank})\n  \
             exitcode  : 1 (pid: 2{rank})\n  error_file: <N/A>\n  traceback : x\n"
        )
    };
    // In containers both launchers have one process ID, and their lines come in turns.
    let summary = format!(
        "E1129 16:33:27.4 1 {ELASTIC}:1002] failed (exitcode: 1) local_rank: 1 (pid: 21) of binary: python\nFailures:\n{}Root Cause (first observed failure):\n{}",
        entry(0),
        entry(1)
    );
    let signalled = format!(
        "W1129 16:33:26.4 1 {ELASTIC}:753] Received 15 death signal, shutting down workers\nW1129 16:33:26.4 1 {ELASTIC}:1028] Sending process 21 closing signal SIGTERM\n\
         Traceback (most recent call last):\ntorch.distributed.elastic.multiprocessing.api.SignalException: Process 1 got signal: 15\n"
    );
    let (mut zero, mut one) = (summary.lines(), signalled.lines());
    let mut text = hooked(&[(0, 0), (0, 1)], PEER);
    while let (Some(line), other) = (zero.next(), one.next()) {
        text += &format!("0: {line}\n");
        text += &other.map_or_else(String::new, |line| format!("1: {line}\n"));
    }
    let found = report(&text);
    assert_eq!(cause(&found), (None, "preempted", Confidence::Medium));
    // Which host task 1 was on nothing tells: not the one that spoke of its workers.
    assert_eq!(found.root_cause.expect("a cause").host, "");
    assert_eq!(found.ranks.collateral, "0-1");
}

#[test]
fn what_srun_labels_as_a_launchers_is_its_ranks() {
    const ELASTIC: &str = "torch/distributed/elastic/multiprocessing/api.py";
    let launcher = |node: u32, rank: u32, status: i32| {
        let own = format!(
            "E1129 16:33:27.4 1 {ELASTIC}:1002] failed (exitcode: {status}) local_rank: 0 (pid: 20) of binary: python\n\
             Traceback (most recent call last):\n  File \"/bin/torchrun\", line 8, in <module>\n    sys.exit(main())\n\
             torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \nFailures:\n  <NO_OTHER_FAILURES>\n\
             Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-29_16:33:26\n  host      : node{node}\n  \
             rank      : {rank} (local_rank: 0)\n  exitcode  : {status} (pid: 20)\n  error_file: <N/A>\n  traceback : x\n"
        );
        labelled(&format!("{node}: "), &own)
    };
    let lost = hooked(&[(0, 0), (0, 1), (1, 3)], PEER);
    let said = labelled("0: ", "step 1\nstep 2\n") + &labelled("1: ", MISMATCH);
    let found = report(&(said + &lost + &launcher(0, 0, 1) + &launcher(1, 2, -6)));
    assert_eq!(cause(&found).1, "collective_mismatch");
    // Of a rank that says nothing the launcher's own exception is no word.
    let found = report(&(lost + &launcher(0, 0, 1) + &launcher(1, 2, -9)));
    assert_eq!(cause(&found), (Some(2), "killed_unknown", Confidence::High));
}

#[test]
fn logs_of_the_tasks_that_srun_tells_of_are_the_ranks() {
    let wait = "torch.distributed.DistStoreError: wait timeout after 12000ms, keys: /default_pg/0//cpu//0/0";
    let joined = "torch.distributed.DistStoreError: Timed out after 13 seconds waiting for clients. 3/4 clients joined.";
    let job = Job::new("task-logs");
    for (task, error) in [joined, wait, wait].into_iter().enumerate() {
        job.write(&format!("task-{task}.out"), traceback(error));
    }
    job.write("task-3.out", "");
    let tasks = [(0, FAILED), (1, FAILED), (2, FAILED), (3, "Terminated")];
    job.write("slurm-4711.out", ended(&tasks));
    let found = job.report();
    let root = found.root_cause.as_ref().expect("a cause");
    assert_eq!((root.rank, root.host.as_str()), (Some(3), "node1"));
    assert_eq!(root.category, "never_arrived");
    assert_eq!(found.ranks.collateral, "0-2");
}

#[test]
fn the_store_tells_how_many_ranks_it_waited_for() {
    let joined = "torch.distributed.DistStoreError: Timed out after 13 seconds waiting for clients. 3/4 clients joined.";
    let text = hooked(&[(0, 0)], joined) + &hooked(&[(1, 1), (2, 2)], TIMEOUT);
    let found = report(&text);
    assert_eq!((cause(&found).0, found.job.world_size), (Some(3), 4));
    assert!(cause(&found).2 < Confidence::High);
}

#[test]
fn a_rank_in_the_middle_of_a_traceback_is_not_surely_the_one_that_never_came() {
    let wait = "torch.distributed.DistStoreError: wait timeout after 8000ms, keys: /default_pg/0//cpu//0/0";
    let begun = "Traceback (most recent call last):\n  File \"/j/train.py\", line 9, in main\n";
    let others = labelled("1: ", &traceback(wait)) + &labelled("2: ", &traceback(wait));
    let found = report(&(others.clone() + &labelled("0: ", begun)));
    assert!(cause(&found).2 < Confidence::High, "{:?}", found.root_cause);
    let found = report(&(others + &labelled("0: ", "loading\n")));
    assert_eq!(cause(&found).0, Some(0));
}

#[test]
fn a_store_whose_name_is_not_known_is_no_store_that_does_not_answer() {
    let warned = "[W1130 18:57:32.9 socket.cpp:764] [c10d] The IPv6 network addresses of (head, 29500) cannot be retrieved (gai error: -2 - Name or service not known).\n";
    let refused = "[W1130 18:57:33.1 socket.cpp:764] [c10d] The client socket has failed to connect to [head]:29500 (errno: 111 - Connection refused).\n";
    let timed_out = "[E1130 18:57:33.2 socket.cpp:1028] [c10d] The client socket has timed out after 12000ms while trying to connect to (head, 29500).\n";
    let gave_up = timed_out.to_owned()
        + &traceback(
            "torch.distributed.DistNetworkError: The client socket has timed out after 12000ms while trying to connect to (head, 29500).",
        );
    let job = |words: &str, tasks: &[u32]| {
        let lines = tasks
            .iter()
            .map(|task| labelled(&format!("{task}: "), &(words.repeat(2) + &gave_up)));
        let how: Vec<(u32, &str)> = (0..4)
            .map(|task| {
                (
                    task,
                    if tasks.contains(&task) {
                        FAILED
                    } else {
                        "Terminated"
                    },
                )
            })
            .collect();
        let (failed, asked): (Vec<_>, Vec<_>) =
            how.into_iter().partition(|(_, how)| *how == FAILED);
        report(&(lines.collect::<String>() + &ended(&[failed, asked].concat())))
    };
    // Others were ended before they gave up, or all have given up; a name may also be gone with its host.
    for tasks in [&[2][..], &[0, 1, 2, 3]] {
        let found = job(warned, tasks);
        assert_eq!(
            cause(&found),
            (None, "dns_failure", Confidence::Medium),
            "{tasks:?}"
        );
        let told = found.root_cause.expect("a cause").evidence.concat();
        assert!(told.contains("timed out after 12000ms"), "{told}");
    }
    // It is known later, or has an address of IPv4, at which nobody answers.
    for words in [
        warned.replace(":32.9", ":21.9"),
        warned.to_owned() + refused,
    ] {
        let found = job(&words, &[0, 1, 2, 3]);
        assert_eq!(cause(&found).1, "never_arrived", "{words}");
    }
}
