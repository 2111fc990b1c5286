//! A readable part of what `nft list table` prints.

/// Blocks of the table: their heads, without the brace.
pub(crate) fn blocks(table: &str, heads: &[&str]) -> Vec<String> {
    heads.iter().flat_map(|head| collapse(block(table, head))).collect()
}

/// The lines of a block, with the indentation of the table taken off.
fn block<'a>(table: &'a str, head: &str) -> Vec<&'a str> {
    let head = format!("\t{head} {{");
    let mut lines: Vec<_> = table
        .lines()
        .skip_while(|line| *line != head)
        .take_while(|line| *line != "\t}")
        .filter_map(|line| line.strip_prefix('\t'))
        .collect();
    if !lines.is_empty() {
        lines.push("}");
    }
    lines
}

/// Folds lines that are repeated.
fn collapse(lines: Vec<&str>) -> Vec<String> {
    let mut collapsed: Vec<(String, usize)> = Vec::new();
    for line in lines {
        match collapsed.last_mut() {
            Some((last, count)) if last == line => *count += 1,
            _ => collapsed.push((line.to_owned(), 1)),
        }
    }
    let show = |(line, count): (String, usize)| {
        let line = line.replace('\t', "    ");
        if count == 1 { line } else { format!("{line}  (× {count})") }
    };
    collapsed.into_iter().map(show).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "table ip t {\n\tmap m {\n\t\ttype mark\n\t}\n\n\tchain c {\n\t\tone\n\
                         \t\ttwo\n\t\ttwo\n\t}\n}\n";

    #[test]
    fn blocks_are_found_and_repetitions_folded() {
        assert_eq!(blocks(TABLE, &["map m"]), ["map m {", "    type mark", "}"]);
        assert_eq!(blocks(TABLE, &["chain c"]), ["chain c {", "    one", "    two  (× 2)", "}"]);
        assert!(blocks(TABLE, &["chain"]).is_empty());
    }
}
