//! A breadcrumb and a step, against the floor of reading the clock.
#![allow(missing_docs)]

use std::ffi::CString;
use std::hint::black_box;
use std::os::unix::ffi::OsStrExt;

use criterion::{Criterion, criterion_group, criterion_main};
use firstfault_handler::black_box::{Header, breadcrumb, create, step};

fn marks(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("black_box");
    group.bench_function("breadcrumb without a box", |bencher| {
        bencher.iter(|| breadcrumb(black_box("load"), Some(black_box("shard 7"))));
    });
    group.bench_function("floor: the clock", |bencher| {
        bencher.iter(std::time::SystemTime::now);
    });
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("error.1.box");
    let path = CString::new(path.as_os_str().as_bytes()).expect("no NUL");
    create(Box::leak(path.into_boxed_c_str()), None, &Header::default()).expect("a box");
    group.bench_function("breadcrumb", |bencher| {
        bencher.iter(|| breadcrumb(black_box("load"), Some(black_box("shard 7"))));
    });
    group.bench_function("step", |bencher| {
        bencher.iter(|| step(black_box(7)));
    });
    group.finish();
}

criterion_group!(benches, marks);
criterion_main!(benches);
