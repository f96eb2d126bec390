//! Runs every script of `tests/regressions`.
//!
//! A script begins with the settings (`tree page=1 chunk=4`, or `=> refused=Config` behind them); then each line is an operation (see `ops.rs`) and, after
//! `=>`, words that its answer or the sizes after it must hold. Lines that begin with `#` and a space are comments.
//! The oracle runs beside the tree as everywhere.

use std::path::Path;

use stemcache::{Error, Tree};

use crate::driver::Driver;
use crate::ops::{Op, parse_header};

fn run_script(text: &str) -> Result<(), String> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with("# "));
    let (_, first) = lines.next().ok_or("an empty script")?;
    let config = parse_header(first)?;
    if first.ends_with("=> refused=Config") {
        let refused = matches!(Tree::new(config), Err(Error::Config { .. }));
        return if refused { Ok(()) } else { Err("settings that should be refused".to_owned()) };
    }
    let mut driver = Driver::new(&config);
    let mut expectations = 0;
    for (number, line) in lines {
        expectations += run_line(&mut driver, line).map_err(|what| format!("line {}: {what}", number + 1))?;
    }
    if expectations == 0 { Err("a script that expects nothing".to_owned()) } else { Ok(()) }
}

/// The number of words that the line expected.
fn run_line(driver: &mut Driver, line: &str) -> Result<usize, String> {
    let (op, expected) = line.split_once("=>").unwrap_or((line, ""));
    let op: Op = op.trim().parse()?;
    let answer = driver.step(&op)?;
    let words = format!("{} {}", answer.words(), driver.size_words());
    for word in expected.split_whitespace() {
        if !words.split(' ').any(|got| got == word) {
            return Err(format!("{op}: expected {word}, got {words}\n{}", driver.dump()));
        }
    }
    Ok(expected.split_whitespace().count())
}

#[test]
fn every_script_runs_as_it_says() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/regressions");
    let mut scripts: Vec<_> = std::fs::read_dir(folder)
        .expect("the folder of scripts")
        .map(|entry| entry.expect("a folder that can be read").path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "ops"))
        .collect();
    scripts.sort();
    assert!(scripts.len() >= 10, "only {} scripts were found", scripts.len());
    let failures: Vec<String> = scripts
        .iter()
        .filter_map(|path| {
            let text = std::fs::read_to_string(path).expect("a script that can be read");
            run_script(&text).err().map(|what| format!("{}: {what}", path.display()))
        })
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

#[test]
fn a_script_with_a_wrong_word_fails() {
    let wrong = "tree page=1\ninsert / ab => prefix=1";
    assert!(run_script(wrong).is_err_and(|what| what.contains("expected prefix=1, got prefix=0")));
    assert!(run_script("tree page=1\ninsert / ab").is_err());
    assert!(run_script("tree page=1\nturn / ab => ok").is_err());
}
