//! Ranks that catch what they raise and print it without a label: what the order tells in which their launchers saw them
//! end, and in which these write.

mod common;

use common::{Job, PEER, cause};
use firstfault_analysis::schema::Confidence;

const OWN: &str = "training failed: IndexError: list index out of range\n";

fn lost() -> String {
    format!("training failed: {PEER}\n")
}

/// What a launcher of two workers, both of which left with 1, says at its end: it asked `asked` of the two, by local rank.
fn launcher(node: u32, first: u32, asked: &[u32]) -> String {
    const ELASTIC: &str = "torch/distributed/elastic/multiprocessing/api.py";
    let pid = |local: u32| 10 * (node + 2) + local;
    let entry = |local: u32| {
        format!(
            "  time      : 2026-11-29_16:33:26\n  host      : node{node}\n  rank      : {} (local_rank: {local})\n  \
             exitcode  : 1 (pid: {})\n  error_file: <N/A>\n  traceback : x\n",
            2 * node + local,
            pid(local)
        )
    };
    let asked: String = asked
        .iter()
        .map(|&local| {
            format!(
                "W1129 16:33:27.4 18 {ELASTIC}:1028] Sending process {} closing signal SIGTERM\n",
                pid(local)
            )
        })
        .collect();
    let rule = "=".repeat(60);
    format!(
        "{asked}E1129 16:33:27.4 18 {ELASTIC}:1002] failed (exitcode: 1) local_rank: {first} (pid: {}) of binary: python\n\
         {rule}\nFailures:\n[1]:\n{}Root Cause (first observed failure):\n[0]:\n{}{rule}\n",
        pid(first),
        entry(1 - first),
        entry(first)
    )
}

fn pods(zero: &str, one: &str) -> firstfault_analysis::Report {
    let job = Job::new("order");
    job.write("train-worker-0.log", zero);
    job.write("train-worker-1.log", one);
    job.report()
}

#[test]
fn the_failure_is_that_of_the_worker_after_which_the_others_were_asked_to_end() {
    let zero = lost().repeat(2) + &launcher(0, 0, &[1]);
    for own in [
        OWN.to_owned() + &lost(),
        lost() + OWN,
        format!(
            "Traceback (most recent call last):\n  File \"t.py\", line 1, in f\n    g()\nIndexError: list index out of range\nTraceback (most recent call last):\n  File \"t.py\", line 1, in f\n    g()\n{PEER}\n"
        ),
    ] {
        let found = pods(&zero, &(own.clone() + &launcher(1, 1, &[0])));
        let root = found.root_cause.as_ref().expect("a cause");
        assert_eq!(
            (root.rank, root.confidence),
            (Some(3), Confidence::Medium),
            "{own}"
        );
        assert_eq!(
            (
                found.ranks.primary.as_str(),
                found.ranks.collateral.as_str()
            ),
            ("3", "0-1")
        );
        assert_eq!(found.ranks.terminated, "2");
        let told = root.evidence.concat();
        assert!(
            told.contains("IndexError") && told.contains("no label tells whose"),
            "{told}"
        );
        // A fourth that lost one is more than there are ranks: the failure was survived.
        let more = match own.rfind("Traceback") {
            Some(at) => own.clone() + &own[at..],
            None => own.clone() + &lost(),
        };
        let found = pods(&zero, &(more + &launcher(1, 1, &[0])));
        assert_eq!(cause(&found).0, None, "{own}: {:?}", found.root_cause);
        // Of two that were seen at once nothing tells.
        let found = pods(&zero, &(own + &launcher(1, 1, &[])));
        assert_eq!(cause(&found).0, None);
    }
}

#[test]
fn where_nothing_is_said_the_first_of_a_launcher_is_the_earlier() {
    let zero = lost().repeat(2) + &launcher(0, 0, &[1]);
    let found = pods(&zero, &launcher(1, 1, &[0]));
    assert_eq!(
        cause(&found),
        (Some(3), "exit_without_traceback", Confidence::Medium)
    );
    assert_eq!(found.ranks.terminated, "2");
    // Where none lost a peer, all may have failed by themselves.
    let found = pods(&launcher(0, 0, &[1]), &launcher(1, 1, &[0]));
    assert_eq!(cause(&found).0, None);
    assert_eq!(found.ranks.primary, "0-3");
}

/// One console, in which the launchers' own output comes at their ends: what their ranks said.
fn console(zero: &str, one: &str) -> firstfault_analysis::Report {
    let job = Job::new("late");
    job.write(
        "console.log",
        launcher(1, 0, &[1]) + one + &launcher(0, 0, &[1]) + zero,
    );
    job.report()
}

#[test]
fn lines_below_a_launchers_summary_are_of_its_own_ranks() {
    let own = format!("[default1]:{OWN}");
    let victims = |locals: [u32; 2]| -> String {
        locals
            .iter()
            .map(|local| format!("[default{local}]:{}", lost()))
            .collect()
    };
    let victim = format!("[default0]:{}", lost());
    for (zero, one, rank, collateral) in [
        (own.clone() + &victim, victims([0, 1]), 1, "0,2-3"),
        (victims([1, 0]), victim.clone() + &own, 3, "0-2"),
    ] {
        let found = console(&zero, &one);
        assert_eq!(
            (cause(&found).0, found.ranks.collateral.as_str()),
            (Some(rank), collateral)
        );
        let told = format!("{:?}", found.root_cause);
        assert!(
            told.contains("its output says: training failed: IndexError"),
            "{told}"
        );
        assert!(!told.contains("assumed"), "{told}");
    }
    // Of launchers that end at once both write below both summaries, and in any order: the steps are those of rank 0.
    let both = |order: [u32; 2], text: &str| {
        let job = Job::new("at-once");
        let [first, second] = order.map(|node| launcher(node, 0, &[]));
        job.write("console.log", first + &second + text);
        job.report()
    };
    let steps = "[default0]:step 0\n[default0]:step 1\n";
    let (of_zero, of_one) = (own.clone() + steps + &victim, victims([0, 1]));
    let (with_steps, with_own) = (steps.to_owned() + &of_one, own.clone() + &victim);
    for (words, rank) in [
        ([&of_zero, &of_one], 1),
        ([&of_one, &of_zero], 1),
        ([&with_steps, &with_own], 3),
        ([&with_own, &with_steps], 3),
    ] {
        for order in [[0, 1], [1, 0]] {
            let found = both(order, &words.map(String::as_str).concat());
            let told = (Some(rank), "python_exception", Confidence::Medium);
            assert_eq!(cause(&found), told, "{words:?}");
            assert!(format!("{:?}", found.root_cause).contains("rank number is assumed"));
        }
    }
    // Those of a part that was written before are no sign.
    let found = both([0, 1], &(of_one.clone() + &with_own));
    let job = Job::new("flushed");
    job.write(
        "console.log",
        steps.to_owned() + &launcher(1, 0, &[]) + &launcher(0, 0, &[]) + &with_steps + &with_own,
    );
    assert_eq!((cause(&found).0, cause(&job.report()).0), (None, None));
    // Without any, where one has not said its last word, and where one says another, nothing tells whose they are.
    let untold = (None, "python_exception", Confidence::Low);
    for words in [
        own.clone() + &victim + &of_one,
        own.clone() + steps + &of_one,
        of_zero.clone() + &of_one + &victim,
    ] {
        let found = both([0, 1], &words);
        assert_eq!(cause(&found), untold, "{words}");
        let suspects: Vec<u32> = found.suspects.iter().map(|it| it.rank).collect();
        assert_eq!(suspects, [1, 3]);
    }
    // One host's ranks had said nothing: then the lines below the last summary are of either.
    let told = format!("{:?}", console(&(own + &victim), "").root_cause);
    assert!(!told.contains("rank: Some(1)"), "{told}");
    assert!(
        told.contains("local rank 1 says, nothing tells on which host"),
        "{told}"
    );
}

fn workers(names: [&str; 3], words: [&str; 3]) -> firstfault_analysis::Report {
    let job = Job::new("workers");
    for (name, words) in names.iter().zip(words) {
        job.write(name, words);
    }
    job.report()
}

#[test]
fn workers_that_all_failed_are_the_ranks_of_their_numbers() {
    let lost = lost();
    let words = [lost.as_str(), OWN, lost.as_str()];
    let pods = ["j-worker-0.log", "j-worker-1.log", "j-worker-2.log"];
    let found = workers(pods, words);
    assert_eq!(
        cause(&found),
        (Some(1), "python_exception", Confidence::Medium)
    );
    let root = found.root_cause.expect("a cause");
    assert!(
        root.evidence
            .iter()
            .any(|it| it.contains("rank number is assumed"))
    );
    assert_eq!(found.ranks.collateral, "0,2");
    let raised =
        "Traceback (most recent call last):\n  File \"t.py\", line 1, in f\nKeyError: 'a'\n";
    let raised = raised.to_owned();
    for (names, words) in [
        // Of a node there may be several; a gap is another log that is not here; one that did not fail may be a launcher's.
        (["node-0.log", "node-1.log", "node-2.log"], words),
        (
            ["j-worker-0.log", "j-worker-1.log", "j-worker-3.log"],
            words,
        ),
        (pods, [lost.as_str(), OWN, "step 1\nstep 2\n"]),
        // Two of one pod; and where no peer was lost these need not be of one job.
        (pods, [&lost, OWN, &raised.repeat(2)]),
        (pods, [OWN, OWN, OWN]),
        (pods, [OWN, &raised, "training failed: ValueError: x\n"]),
        // Those after a master are numbered from 0 as well; words name another rank.
        (
            ["j-worker-0.log", "j-worker-1.log", "j-master.log"],
            [OWN, lost.as_str(), lost.as_str()],
        ),
        (
            pods,
            [
                lost.as_str(),
                &format!("GLOBAL_RANK: 2, MEMBER: 3/4\n{OWN}"),
                lost.as_str(),
            ],
        ),
    ] {
        assert_eq!(cause(&workers(names, words)).0, None, "{names:?} {words:?}");
    }
}

#[test]
fn a_task_in_which_a_launcher_runs_is_a_host() {
    let labelled = |task: u32, text: &str| -> String {
        text.lines()
            .map(|line| format!("{task}: {line}\n"))
            .collect()
    };
    let report = |zero: &str, one: &str| {
        let job = Job::new("tasks");
        job.write("slurm-1.out", labelled(0, zero) + &labelled(1, one));
        job.report()
    };
    let own = format!("step 0\n{OWN}{}", lost());
    let other = lost().repeat(2) + &launcher(1, 0, &[1]);
    let found = report(&(own.clone() + &launcher(0, 1, &[0])), &other);
    assert_eq!(
        cause(&found),
        (Some(1), "python_exception", Confidence::Medium)
    );
    // Of two that failed at once nothing tells which; it is neither of the other host.
    let found = report(&(own + &launcher(0, 1, &[])), &other);
    let root = found.root_cause.as_ref().expect("a cause");
    assert_eq!((root.rank, root.host.as_str()), (None, "node0"));
    assert_eq!(found.ranks.collateral, "2-3");
}

#[test]
fn workers_of_one_number_on_several_hosts_fail_once_each() {
    let job = Job::new("numbers");
    let mut text = lost().repeat(3);
    for node in 0..3 {
        // Each host numbers its processes from the same number on.
        let said = launcher(node, 0, &[]).replace(&format!("pid: {}", 10 * (node + 2)), "pid: 20");
        text += &said.replace(&format!("pid: {}", 10 * (node + 2) + 1), "pid: 21");
    }
    job.write("console.log", text);
    assert_eq!(job.report().job.attempts, 1);
}

#[test]
fn a_hosts_words_are_heard_for_workers_that_its_launcher_ended_and_did_not_list() {
    const WAITED: &str = "ERROR:trainer:training failed: [unbound_buffer.cc:81] Timed out waiting 12000ms for recv operation to complete\n";
    // Torch 2.6 lists the worker that failed alone.
    let only = |node: u32| {
        let said = launcher(node, 1, &[0]);
        let (before, rest) = said.split_once("[1]:\n").expect("an entry");
        let (_, root) = rest.split_once("Root Cause").expect("a title");
        format!("{before}  <NO_OTHER_FAILURES>\nRoot Cause{root}")
    };
    let task = |number: u32, words: &str| -> String {
        let text = words.to_owned() + &only(number);
        text.lines()
            .map(|line| format!("{number}: {line}\n"))
            .collect()
    };
    let job = Job::new("unlisted");
    job.write("slurm-1.out", task(0, WAITED) + &task(1, &WAITED.repeat(2)));
    let found = job.report();
    assert_eq!(
        (cause(&found).0, found.ranks.collateral.as_str()),
        (Some(0), "1-3")
    );
}

#[test]
fn what_a_host_says_after_another_has_ended_is_not_of_that() {
    let said = |local: u32, error: &str| {
        format!(
            "[default{local}]:Traceback (most recent call last):\n[default{local}]:  File \"t.py\", line 1, in f\n[default{local}]:{error}\n"
        )
    };
    let waited = "torch.distributed.DistStoreError: wait timeout after 12000ms, keys: /default_pg/0//cpu//0/2";
    let missing = "ModuleNotFoundError: No module named 'x'";
    // Of its own workers the second launcher shows the error files.
    let shown = format!(
        "traceback : Traceback (most recent call last):\n    File \"t.py\", line 1, in f\n  {waited}\n"
    );
    let text = said(0, missing)
        + &said(1, missing)
        + &launcher(1, 0, &[])
        + &said(0, waited)
        + &said(1, waited)
        + &launcher(0, 0, &[]).replace("traceback : x\n", &shown);
    let job = Job::new("after");
    job.write("console.log", text);
    let found = job.report();
    let root = found.root_cause.as_ref().expect("a cause");
    assert_eq!(
        (root.host.as_str(), root.category.as_str()),
        ("node1", "import_error")
    );
    assert_eq!(
        (
            found.ranks.primary.as_str(),
            found.ranks.collateral.as_str()
        ),
        ("2-3", "0-1")
    );
}

#[test]
fn a_rank_that_words_name_is_believed_over_the_order() {
    let zero = lost().repeat(2) + &launcher(0, 0, &[1]);
    for margin in ["[rank {}] ", "rank {}: ", "RANK={} | "] {
        let of = |rank: u32, text: &str| margin.replace("{}", &rank.to_string()) + text;
        let one = of(2, OWN) + &of(3, &lost()) + &launcher(1, 1, &[0]);
        let found = pods(&zero, &one);
        assert_eq!(cause(&found).0, Some(2), "{margin}");
        // That of a tensor is none.
        let tensor = "training failed: ValueError: expected rank 2 tensor\n";
        let found = pods(
            &zero,
            &(tensor.to_owned() + &lost() + &launcher(1, 1, &[0])),
        );
        assert_eq!(cause(&found).0, Some(3));
        // One of another host is no word of this.
        let one = of(0, OWN) + &of(3, &lost()) + &launcher(1, 1, &[0]);
        assert_ne!(cause(&pods(&zero, &one)).0, Some(0), "{margin}");
    }
}

#[test]
fn a_console_that_is_cut_before_a_summary_tells_of_one_attempt() {
    let job = Job::new("cut");
    let one = launcher(1, 0, &[]);
    let (failed, _) = one.split_once("====").expect("a rule");
    let zero = launcher(0, 0, &[]);
    let (first, rest) = zero.split_once('\n').expect("a line");
    job.write("console.log", format!("{first}\n{failed}{rest}"));
    let found = job.report();
    assert_eq!(found.job.attempts, 1, "{:?}", found.attempts);
    // Without a word of any, that all left alike is no proof of a setting.
    assert_eq!((cause(&found).0, cause(&found).2), (None, Confidence::Low));
    let told = found.root_cause.expect("a cause").evidence.concat();
    assert!(
        told.contains("with the same exit code and no word"),
        "{told}"
    );
}
