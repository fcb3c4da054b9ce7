//! What kernels and schedulers say, in whatever log: who killed it, whose hardware failed, who ended the job.

mod common;

use common::{Job, PEER, SECOND, START, cause, ours};
use firstfault_analysis::Report;
use firstfault_analysis::schema::Confidence;

const KILLED: &str =
    "E1 api.py:1002] failed (exitcode: -9) local_rank: 2 (pid: 4711) of binary: python\n";

fn victims(job: &Job, ranks: &[u32]) {
    for &rank in ranks {
        let record = ours(rank, PEER, START + SECOND + i64::from(rank));
        job.record(&format!("rank_{rank}.node{}.1.json", rank / 2), &record);
    }
}

fn killed(job: &Job) {
    victims(job, &[0, 1, 3]);
    job.write("agent.err", KILLED);
}

fn evidence(report: &Report) -> String {
    report.root_cause.as_ref().unwrap().evidence.join("\n")
}

#[test]
fn a_kernel_that_killed_the_process_says_so() {
    let job = Job::new("oom");
    killed(&job);
    assert_eq!(cause(&job.report()).1, "killed_unknown");
    let line = "[8.1] Memory cgroup out of memory: Killed process 4711 (python3) total-vm:9kB";
    job.write("dmesg.txt", format!("x\n{line}\n"));
    let found = job.report();
    assert_eq!(
        cause(&found),
        (Some(2), "host_oom_killed", Confidence::High)
    );
    assert!(
        evidence(&found).contains("dmesg.txt:2"),
        "{}",
        evidence(&found)
    );
}

#[test]
fn a_kill_of_another_process_explains_nothing() {
    let job = Job::new("oom-other");
    killed(&job);
    job.write("dmesg.txt", "Out of memory: Killed process 99 (other)\n");
    assert_eq!(cause(&job.report()).1, "killed_unknown");
}

#[test]
fn a_kill_of_a_dataloader_worker_is_why_its_rank_failed() {
    let job = Job::new("oom-worker");
    victims(&job, &[0, 1, 3]);
    let error = "RuntimeError: DataLoader worker (pid 4242) is killed by signal: Killed. ";
    job.record("rank_2.node1.1.json", &ours(2, error, START));
    assert_eq!(cause(&job.report()).1, "dataloader_worker_died");
    job.write(
        "dmesg.txt",
        "Out of memory: Killed process 4242 (pt_data_worker)\n",
    );
    assert_eq!(
        cause(&job.report()),
        (Some(2), "host_oom_killed", Confidence::High)
    );
}

#[test]
fn slurm_counts_kills_without_a_process() {
    let job = Job::new("oom-slurm");
    killed(&job);
    job.write("slurm-1.out", "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0. Some of the step tasks have been OOM Killed.\n");
    let found = job.report();
    let (rank, category, _) = cause(&found);
    assert_eq!((rank, category), (Some(2), "host_oom_killed"));
}

#[test]
fn slurm_that_cancels_a_job_for_its_memory_says_so_before() {
    let job = Job::new("memory-slurm");
    let cancelled = LIMIT.replace(" DUE TO TIME LIMIT", "");
    job.write("slurm-1.out", format!("step 1\nslurmstepd: error: Job 1 exceeded memory limit (70000000 > 64000000), being killed\nslurmstepd: error: Exceeded job memory limit\n{cancelled}step 2\n"));
    let found = job.report();
    assert_eq!(cause(&found), (None, "host_oom_killed", Confidence::High));
}

const LIMIT: &str = "slurmstepd: error: *** JOB 1 ON node0 CANCELLED AT 2026-11-29T20:00:00 DUE TO TIME LIMIT ***\n";

#[test]
fn a_scheduler_that_ended_the_job_is_the_cause() {
    for (line, category) in [
        (LIMIT.to_owned(), "time_limit"),
        (LIMIT.replace("TIME LIMIT", "PREEMPTION"), "preempted"),
        (LIMIT.replace(" DUE TO TIME LIMIT", ""), "interrupted"),
    ] {
        let job = Job::new("scheduler");
        job.write("slurm-1.out", &line);
        job.write(
            "agent.err",
            "W1 api.py:753] Received 15 death signal, shutting down workers\n",
        );
        let found = job.report();
        assert_eq!(cause(&found), (None, category, Confidence::High), "{line}");
        assert!(found.root_cause.unwrap().title.contains("CANCELLED"));
    }
}

#[test]
fn a_rank_that_failed_by_itself_before_is_not_explained_by_the_scheduler() {
    let job = Job::new("scheduler-after");
    victims(&job, &[0, 1, 3]);
    job.record(
        "rank_2.node1.1.json",
        &ours(2, "ValueError: bad batch", START),
    );
    job.write("slurm-1.out", LIMIT);
    assert_eq!(
        cause(&job.report()),
        (Some(2), "python_exception", Confidence::High)
    );
}

#[test]
fn a_node_that_the_scheduler_lost_is_named() {
    let job = Job::new("node");
    victims(&job, &[0, 1]);
    job.write("slurm-1.out", "srun: error: Node failure on node7\n");
    let found = job.report();
    assert_eq!(cause(&found).1, "host_lost");
    assert!(evidence(&found).contains("node7"), "{}", evidence(&found));
}

#[test]
fn broken_hardware_on_the_host_of_the_failure_is_the_cause() {
    let xid = |host: &str| {
        format!("Nov 29 16:33:26 {host} kernel: NVRM: Xid (PCI:0000:3b:00): 94, pid=8, Contained\n")
    };
    for (host, category, sure) in [
        ("node1", "ecc_error", Confidence::High),
        ("node0", "illegal_memory_access", Confidence::Low),
    ] {
        let job = Job::new("xid");
        victims(&job, &[0, 1, 3]);
        let error = "RuntimeError: CUDA error: an illegal memory access was encountered";
        job.record("rank_2.node1.1.json", &ours(2, error, START));
        job.write("kern.log", xid(host));
        assert_eq!(cause(&job.report()), (Some(2), category, sure), "{host}");
    }
}

#[test]
fn what_the_kernel_says_alone_is_told() {
    let job = Job::new("alone");
    job.write(
        "dmesg.log",
        "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n",
    );
    let found = job.report();
    assert_eq!(cause(&found), (None, "gpu_lost", Confidence::Low));
}

#[test]
fn prose_is_no_line_of_a_kernel_or_a_scheduler() {
    for line in [
        "INFO will save a checkpoint before the job is killed due to time limit",
        "# if dmesg says Out of memory: Killed process, lower the batch",
        "set workers=2 if the pod gets OOMKilled",
        "[0.1] mce: [Hardware Error]: It has been corrected by h/w and requires no further action",
    ] {
        let job = Job::new("prose");
        killed(&job);
        job.write("notes.txt", format!("{line}\n"));
        let found = job.report();
        assert_eq!(cause(&found).1, "killed_unknown", "{line}");
    }
}

#[test]
fn what_a_scheduler_ended_after_a_rank_had_failed_is_not_its_doing() {
    let job = Job::new("kill-on-bad-exit");
    killed(&job);
    job.write("slurm-1.out", LIMIT.replace(" DUE TO TIME LIMIT", ""));
    let found = job.report();
    let (rank, category, _) = cause(&found);
    assert_eq!((rank, category), (Some(2), "killed_unknown"));
    job.write(
        "dmesg.txt",
        "Out of memory: Killed process 4711 (python3)\n",
    );
    assert_eq!(
        cause(&job.report()),
        (Some(2), "host_oom_killed", Confidence::High)
    );
}

#[test]
fn a_line_of_another_host_or_another_day_explains_nothing() {
    for line in [
        "Nov 29 16:33:26 node9 kernel: NVRM: Xid (PCI:0000:3b:00): 94, pid=8, Contained",
        "Oct  2 16:33:26 node1 kernel: NVRM: Xid (PCI:0000:3b:00): 94, pid=8, Contained",
    ] {
        let job = Job::new("other");
        victims(&job, &[0, 1, 3]);
        let error = "RuntimeError: CUDA error: an illegal memory access was encountered";
        job.record("rank_2.node1.1.json", &ours(2, error, START));
        job.write("kern.log", format!("{line}\n"));
        assert_eq!(
            cause(&job.report()),
            (Some(2), "illegal_memory_access", Confidence::Low),
            "{line}"
        );
    }
}

#[test]
fn a_process_of_another_host_has_the_same_number_by_chance() {
    let job = Job::new("chance");
    victims(&job, &[0, 1, 3]);
    let mut record = common::signal(2, START);
    record["message"]["errorCode"] = (-9).into();
    job.record("rank_2.node1.1.json", &record);
    job.write(
        "kern.log",
        "Nov 29 16:33:26 node9 kernel: Out of memory: Killed process 1002 (chrome)\n",
    );
    assert_ne!(cause(&job.report()).1, "host_oom_killed");
}

#[test]
fn a_run_that_went_on_after_the_schedulers_line_did_not_end_by_it() {
    let job = Job::new("requeued");
    let more = "step 1 loss 0.5\n".repeat(100);
    job.write(
        "slurm-1.out",
        LIMIT.replace("TIME LIMIT", "PREEMPTION") + &more,
    );
    assert!(job.report().root_cause.is_none());
}

#[test]
fn a_launcher_whose_workers_ended_well_is_believed() {
    let job = Job::new("well");
    job.write(
        "train.log",
        "[rank1]: Traceback (most recent call last):\n[rank1]:   File \"t.py\", line 1, in main\n[rank1]: ValueError: retried\n\
         LustreError: 11-0: x\nI1129 16:33:26.1 12 torch/distributed/elastic/agent/server/api.py:879] [default] worker group successfully finished. Waiting 300 seconds for other agents to finish.\n",
    );
    let found = job.report();
    assert!(found.root_cause.is_none(), "{:?}", found.root_cause);
}

#[test]
fn a_number_that_begins_like_a_workers_is_another_process() {
    for (killed, category) in [(42, "dataloader_worker_died"), (4243, "host_oom_killed")] {
        let job = Job::new("oom-prefix");
        victims(&job, &[0, 1, 3]);
        let error = "RuntimeError: DataLoader worker (pid(s) 4242, 4243) exited unexpectedly";
        job.record("rank_2.node1.1.json", &ours(2, error, START));
        job.write(
            "dmesg.txt",
            format!("Out of memory: Killed process {killed} (python3)\n"),
        );
        assert_eq!(cause(&job.report()).1, category, "{killed}");
    }
}

#[test]
fn a_kernel_that_kills_in_a_container_names_another_number() {
    for (line, category) in [
        (
            "Memory cgroup out of memory: Killed process 99 (python3) total-vm:9kB",
            "host_oom_killed",
        ),
        (
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task_memcg=/kubepods/pod1,task=pt_data_worker,pid=99,uid=0",
            "host_oom_killed",
        ),
        (
            "Memory cgroup out of memory: Killed process 99 (java) total-vm:9kB",
            "killed_unknown",
        ),
    ] {
        let job = Job::new("container");
        killed(&job);
        job.write("dmesg.txt", format!("[8.1] {line}\n"));
        let found = job.report();
        let (rank, told, sure) = cause(&found);
        assert_eq!((rank, told), (Some(2), category), "{line}");
        if category == "host_oom_killed" {
            assert_eq!(sure, Confidence::Medium, "never sure: {line}");
            assert!(
                evidence(&found).contains("another number"),
                "{}",
                evidence(&found)
            );
        }
    }
    // The number of a rank that ended otherwise is that rank's.
    let job = Job::new("container-own");
    killed(&job);
    job.write(
        "dmesg.txt",
        "[8.1] Memory cgroup out of memory: Killed process 1001 (python3) total-vm:9kB\n",
    );
    assert_eq!(cause(&job.report()).1, "killed_unknown");
}

#[test]
fn a_pod_that_kubernetes_killed_for_memory_is_the_rank_of_that_name() {
    let pod = |name: &str, reason: &str, code: u32| {
        format!(
            "Name:             {name}\nNamespace:        train\nNode:             gpu-7/10.0.0.7\nContainers:\n  main:\n    State:          Terminated\n      Reason:       {reason}\n      Exit Code:    {code}\n"
        )
    };
    // The host of rank 2 is node1, of rank 0 it is node0.
    for (name, category) in [("node1", "host_oom_killed"), ("node0", "killed_unknown")] {
        let job = Job::new("pod");
        victims(&job, &[0, 1, 3]);
        let line =
            "E1 api.py:1002] failed (exitcode: -9) local_rank: 0 (pid: 4711) of binary: python\n";
        let entry = "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-29_16:33:26\n  host      : node1\n  rank      : 2 (local_rank: 0)\n  exitcode  : -9 (pid: 4711)\n  error_file: <N/A>\n  traceback : x\n";
        job.write("agent.err", format!("{line}{entry}"));
        job.write(
            "pods.txt",
            pod("other", "Error", 1) + &pod(name, "OOMKilled", 137),
        );
        let found = job.report();
        assert_eq!(
            (cause(&found).0, cause(&found).1),
            (Some(2), category),
            "{name}"
        );
    }
}

#[test]
fn rows_of_sacct_are_read() {
    for (row, category) in [
        (
            "4711              train        gpu       acct         64    TIMEOUT      0:0",
            "time_limit",
        ),
        (
            "4711              train        gpu       acct         64  NODE_FAIL      1:0",
            "host_lost",
        ),
        (
            "4711              train        gpu       acct         64  PREEMPTED      0:0",
            "preempted",
        ),
    ] {
        let job = Job::new("sacct");
        job.write("sacct.txt", format!("JobID           JobName  Partition    Account  AllocCPUS      State ExitCode\n------------ ---------- ---------- ---------- ---------- ---------- --------\n{row}\n"));
        job.write(
            "agent.err",
            "W1 api.py:753] Received 15 death signal, shutting down workers\n",
        );
        assert_eq!(cause(&job.report()).1, category, "{row}");
    }
}
