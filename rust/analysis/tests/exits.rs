//! Launchers that are not torchrun: which rank they name, and when they name none.

mod common;

use common::{Job, PEER, cause};
use firstfault_analysis::schema::Confidence;

const BAD: &str = "ValueError: bad batch";

fn traceback(error: &str) -> String {
    format!(
        "Traceback (most recent call last):\n  File \"/j/train.py\", line 9, in main\n    step()\n{error}\n"
    )
}

fn labelled(rank: u32, text: &str) -> String {
    text.lines()
        .map(|line| format!("[rank{rank}]: {line}\n"))
        .collect()
}

fn lost(ranks: &[u32]) -> String {
    ranks
        .iter()
        .map(|rank| labelled(*rank, &traceback(PEER)))
        .collect()
}

fn report(text: &str) -> firstfault_analysis::Report {
    let job = Job::new("exits");
    job.write("slurm-4711.out", text);
    job.report()
}

#[test]
fn sruns_tasks_are_ranks_and_their_hosts_are_told() {
    for (how, category) in [
        ("Segmentation fault (core dumped)", "segfault"),
        ("Aborted (core dumped)", "abort"),
        ("Bus error (core dumped)", "bus_error"),
        ("Killed", "killed_unknown"),
        ("Out Of Memory", "host_oom_killed"),
        ("Exited with exit code 7", "exit_without_traceback"),
    ] {
        let text = format!(
            "{}srun: error: node1: task 3: {how}\nsrun: Terminating StepId=4711.0\nsrun: error: node0: tasks 0-1: Exited with exit code 1\nsrun: error: node1: task 2: Exited with exit code 1\n",
            lost(&[0, 1, 2])
        );
        let found = report(&text);
        let root = found.root_cause.as_ref().unwrap();
        assert_eq!(
            (root.rank, root.category.as_str()),
            (Some(3), category),
            "{how}"
        );
        assert_eq!(root.host, "node1");
        assert_eq!(found.ranks.collateral, "0-2");
        let evidence = root.evidence.join("\n");
        assert!(evidence.contains("slurm-4711.out:13"), "{evidence}");
    }
}

#[test]
fn whom_srun_killed_after_a_failure_is_no_cause() {
    let text = format!(
        "{}srun: error: node1: task 3: Exited with exit code 1\nsrun: Terminating StepId=4711.0\nslurmstepd: error: *** STEP 4711.0 ON node0 CANCELLED AT 2026-11-29T20:00:00 ***\nsrun: error: node0: tasks 0-2: Killed\n",
        labelled(3, &traceback(BAD))
    );
    let found = report(&text);
    assert_eq!(cause(&found).0, Some(3));
    assert_eq!(found.root_cause.unwrap().title, BAD);
    assert_eq!(found.ranks.terminated, "0-2");
}

#[test]
fn ranks_that_left_with_one_do_not_outvote_a_crash() {
    let text = "srun: error: node0: tasks 0-1: Exited with exit code 1\nsrun: error: node1: task 2: Exited with exit code 1\nsrun: error: node1: task 3: Segmentation fault (core dumped)\n";
    let found = report(text);
    let (rank, category, sure) = cause(&found);
    assert_eq!((rank, category), (Some(3), "segfault"));
    assert!(sure < Confidence::High, "that a task is a rank is assumed");
}

#[test]
fn tasks_of_launchers_are_no_ranks() {
    let of_torchrun = format!(
        "{}E1129 16:33:27.4 18241 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 1 (pid: 18808) of binary: python3\nsrun: error: node1: task 1: Exited with exit code 1\n",
        labelled(5, &traceback(BAD))
    );
    let of_deepspeed = format!(
        "{}[2026-11-29 16:33:26,123] [ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python', '-u', 't.py', '--local_rank=3'] exits with return code = 1\nsrun: error: node1: task 1: Exited with exit code 1\n",
        labelled(5, &traceback(BAD))
    );
    for text in [of_torchrun, of_deepspeed] {
        let found = report(&text);
        assert_ne!(cause(&found).0, Some(1), "{text}");
        assert_ne!(cause(&found).0, Some(3), "{text}");
    }
}

#[test]
fn deepspeed_shows_the_command_of_its_last_process_whichever_failed() {
    let last = "[2026-11-29 16:33:26,123] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 4711\n[2026-11-29 16:33:26,123] [ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python', '-u', 't.py', '--local_rank=3'] exits with return code = -9\n";
    // Ranks 0, 1 and 3 lost a peer: the one that was killed is the one that said nothing.
    let found = report(&format!("{}{last}", lost(&[0, 1, 3])));
    assert_eq!(
        cause(&found),
        (Some(2), "killed_unknown", Confidence::Medium)
    );
    let found = report(&format!("{}{last}", lost(&[0, 3])));
    let (rank, category, sure) = cause(&found);
    assert_eq!(
        (rank, category, sure),
        (None, "killed_unknown", Confidence::Low)
    );
    // Where a rank says why it failed, the code is its.
    let found = report(&format!(
        "{}{}{last}",
        lost(&[0, 1, 3]),
        labelled(2, &traceback(BAD))
    ));
    assert_eq!(cause(&found).0, Some(2));
    assert_eq!(found.root_cause.unwrap().title, BAD);
}

#[test]
fn mpiruns_ranks_are_named() {
    let text = format!(
        "{}--------------------------------------------------------------------------\nPrimary job  terminated normally, but 1 process returned\na non-zero exit code. Per user-direction, the job has been aborted.\n--------------------------------------------------------------------------\nmpirun noticed that process rank 3 with PID 4711 on node node1 exited on signal 11 (Segmentation fault).\n",
        lost(&[0, 1, 2])
    );
    let found = report(&text);
    let root = found.root_cause.as_ref().unwrap();
    assert_eq!(
        (root.rank, root.category.as_str(), root.host.as_str()),
        (Some(3), "segfault", "node1")
    );
}

#[test]
fn spawns_processes_are_told_by_their_number() {
    let parent = "Traceback (most recent call last):\n  File \"/j/train.py\", line 40, in <module>\n    mp.spawn(main, nprocs=4)\n  File \"/opt/lib/python3.11/site-packages/torch/multiprocessing/spawn.py\", line 196, in join\n    raise ProcessRaisedException(msg, error_index, failed_process.pid)\n";
    let raised = format!(
        "{parent}torch.multiprocessing.spawn.ProcessRaisedException: \n\n-- Process 1 terminated with the following error:\n{}\n",
        traceback(BAD)
    );
    let found = report(&raised);
    let root = found.root_cause.as_ref().unwrap();
    assert_eq!((root.rank, root.title.as_str()), (Some(1), BAD));
    assert!(
        root.confidence < Confidence::High,
        "its number on its host is no rank"
    );
    let killed = format!(
        "{parent}torch.multiprocessing.spawn.ProcessExitedException: process 2 terminated with signal SIGSEGV\n"
    );
    let found = report(&killed);
    assert_eq!((cause(&found).0, cause(&found).1), (Some(2), "segfault"));
}

#[test]
fn lightnings_child_processes_are_told_by_their_number() {
    let text = "[rank: 1] Child process with PID 4711 terminated with code -9. Forcefully terminating all other processes to avoid zombies 🧟\nKilled\n";
    let found = report(text);
    assert_eq!(
        (cause(&found).0, cause(&found).1),
        (Some(1), "killed_unknown")
    );
}

#[test]
fn a_shells_words_are_of_its_command() {
    for (line, category) in [
        (
            "run.sh: line 3:  4711 Killed                  python train.py",
            "killed_unknown",
        ),
        (
            "run.sh: line 3:  4711 Segmentation fault      (core dumped) python train.py",
            "segfault",
        ),
        ("Segmentation fault (core dumped)", "segfault"),
    ] {
        let found = report(&format!("step 1\nstep 2\n{line}\n"));
        assert_eq!(
            (cause(&found).0, cause(&found).1),
            (None, category),
            "{line}"
        );
    }
    // What killed the launcher is not what killed a rank.
    let job = Job::new("shell");
    job.write(
        "train.log",
        "run.sh: line 3:  4711 Killed                  torchrun --nproc-per-node=4 train.py\n",
    );
    assert!(
        firstfault_analysis::analyze(
            std::slice::from_ref(&job.0),
            &firstfault_analysis::Options::default()
        )
        .is_err()
    );
}

#[test]
fn a_launchers_own_traceback_is_no_cause() {
    let relay = "Traceback (most recent call last):\n  File \"/opt/bin/accelerate\", line 8, in <module>\n    sys.exit(main())\n  File \"/opt/lib/python3.11/site-packages/accelerate/commands/launch.py\", line 763, in simple_launcher\n    raise subprocess.CalledProcessError(returncode=process.returncode, cmd=cmd)\nsubprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit status 1.\n";
    let found = report(&format!("{}{relay}", traceback(BAD)));
    assert_eq!(found.root_cause.as_ref().unwrap().title, BAD);
    // A program's own command that failed is its own failure.
    let own = relay.replace("accelerate/commands/launch.py", "mine/build.py");
    let found = report(&own);
    assert!(
        found
            .root_cause
            .unwrap()
            .title
            .starts_with("CalledProcessError")
    );
}

#[test]
fn what_ray_lists_as_possible_is_no_evidence() {
    let text = "Traceback (most recent call last):\n  File \"/j/driver.py\", line 9, in <module>\n    ray.get(tasks)\nray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n\tclass_name: RayTrainWorker\n\tpid: 4711\n\tip: 10.0.0.2\nThe actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file. There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer due to high memory usage. (2) ray stop --force is called. (3) The worker is crashed unexpectedly due to SIGSEGV or other unexpected errors.\n";
    let found = report(text);
    assert_eq!(cause(&found), (None, "killed_unknown", Confidence::Low));
}

#[test]
fn a_worker_that_ray_train_names_is_the_rank() {
    let driver = "Traceback (most recent call last):\n  File \"/j/driver.py\", line 9, in <module>\n    ray.get(tasks)\nray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n\tclass_name: RayTrainWorker\nThe actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: x.\n";
    for named in [
        "(TorchTrainer pid=41) Worker 3 has failed.\n",
        "(BackendExecutor pid=41) 2026-11-29 19:15:43,827\tINFO utils.py:57 -- Worker 3 has failed.\n",
        "Worker 3 has failed.\n",
    ] {
        let found = report(&format!("{named}{driver}"));
        assert_eq!(
            cause(&found),
            (Some(3), "killed_unknown", Confidence::Low),
            "{named}"
        );
    }
}

#[test]
fn what_a_platform_says_of_a_refused_command_line_hides_no_usage() {
    let text = "usage: train.py [-h] [--lr LR]\ntrain.py: error: argument --lr: invalid float value: ''\nThe experiment failed.\nUserError: User program failed with SystemExit: 2\n";
    let found = report(text);
    assert_eq!(cause(&found).1, "config_error");
}

#[test]
fn a_task_among_more_ranks_than_tasks_may_be_a_host() {
    // Two nodes of eight ranks, whose launchers say nothing: task 1 is the launcher of node1.
    let ranks: Vec<u32> = (0..16).collect();
    let text = format!(
        "{}srun: error: node1: task 1: Killed\nsrun: error: node0: task 0: Exited with exit code 1\n",
        lost(&ranks)
    );
    let found = report(&text);
    let root = found.root_cause.unwrap();
    assert!(
        root.rank.is_none() || root.confidence < Confidence::High,
        "{root:?}"
    );
}

#[test]
fn composers_launcher_names_ranks_and_shows_what_those_that_crashed_said() {
    let waits = "Waiting up to 30 seconds for all training processes to terminate. Press Ctrl-C to exit immediately.\n";
    let crash = format!(
        "ERROR:composer.cli.launcher:Rank 12 crashed with exit code -7.\n{waits}ERROR:composer.cli.launcher:Global rank 8 (PID 4707) exited with code -15\n"
    );
    let found = report(&crash);
    assert_eq!((cause(&found).0, cause(&found).1), (Some(12), "bus_error"));
    assert_eq!(found.ranks.terminated, "8");
    let block = |rank: u32, stream: &str, text: &str| {
        format!(
            "----------Begin global rank {rank} {stream}----------\n{text}\n----------End global rank {rank} {stream}----------\n"
        )
    };
    let shown = |rank: u32, text: &str| {
        format!(
            "Global rank {rank} (PID {}) exited with code 1\n{}{}",
            4700 + rank,
            block(rank, "STDOUT", "step 1"),
            block(rank, "STDERR", text)
        )
    };
    let raised = format!(
        "ERROR:composer.cli.launcher:Rank 1 crashed with exit code 1.\n{waits}{}{}",
        shown(1, &traceback(PEER)),
        shown(2, &traceback(BAD))
    );
    let found = report(&raised);
    let root = found.root_cause.as_ref().unwrap();
    assert_eq!((root.rank, root.title.as_str()), (Some(2), BAD));
    assert_eq!(found.ranks.collateral, "1");
}

#[test]
fn launchers_of_machines_name_the_rank_and_its_host() {
    for (said, host, category) in [
        (
            "node1: rank 3 died from signal 11 and dumped core\nnode0: rank 0 died from signal 15\n",
            "node1",
            "segfault",
        ),
        (
            "node1: rank 3 exited with code 7\nnode0: rank 0 died from signal 15\n",
            "node1",
            "exit_without_traceback",
        ),
        (
            "_pmiu_daemon(SIGCHLD): [NID 00012] [c0-0c1s2n3] [Sun Nov 29 16:33:26 2026] PE RANK 3 exit signal Bus error\n[NID 00012] 2026-11-29 16:33:26 Apid 4711: initiated application termination\n_pmiu_daemon(SIGCHLD): [NID 00011] [c0-0c1s2n2] [Sun Nov 29 16:33:27 2026] PE RANK 0 exit signal Killed\n",
            "nid00012",
            "bus_error",
        ),
        (
            "0.06s: flux-shell[0]: FATAL: task-exit: t.py: task rank 3 on host node1 failed and exit-on-error is set\nflux-job: task(s) Terminated\n",
            "node1",
            "exit_without_traceback",
        ),
        (
            "flux-shell[0]: FATAL: doom: t.py: rank 3 on host node1 exited and exit-timeout=30s has expired\nflux-job: task(s) exited with exit code 143\n",
            "node1",
            "left_early",
        ),
        (
            "ERROR:  One or more process (first noticed rank 3) terminated with signal 11 (core dumped)\n",
            "",
            "segfault",
        ),
        (
            "Process 3 exit with status code 139.\nThe first process to do so was:\nProcess name: 3\nExit code: 139\n",
            "",
            "segfault",
        ),
    ] {
        let found = report(&format!("{}{said}", lost(&[0, 1, 2])));
        let root = found.root_cause.as_ref().unwrap();
        assert_eq!(
            (root.rank, root.category.as_str(), root.host.as_str()),
            (Some(3), category, host),
            "{said}"
        );
        assert_eq!(found.ranks.collateral, "0-2", "{said}");
    }
}
