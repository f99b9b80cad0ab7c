//! Programs as trees, which can be shrunk without becoming invalid.

/// Statements that are kept or removed together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// Text that is complete by itself.
    Lines(String),
    /// Statements between texts, which open and close them.
    Group {
        /// Opening texts, each with the statements after it.
        parts: Vec<(String, Vec<Node>)>,
        /// Text after the last statements.
        close: String,
    },
}

impl Node {
    /// Appends the text of the node.
    pub(super) fn write(&self, text: &mut String) {
        match self {
            Self::Lines(lines) => text.push_str(lines),
            Self::Group { parts, close } => {
                for (open, body) in parts {
                    text.push_str(open);
                    for node in body {
                        node.write(text);
                    }
                }
                text.push_str(close);
            }
        }
    }
}

/// Returns the lists with a run of nodes removed, or with one node shrunk.
pub(super) fn smaller(nodes: &[Node]) -> Vec<Vec<Node>> {
    let mut found = Vec::new();
    let mut length = nodes.len();
    while length > 0 {
        let mut start = 0;
        while start + length <= nodes.len() {
            let mut left = nodes.to_vec();
            left.drain(start..start + length);
            found.push(left);
            start += length;
        }
        length /= 2;
    }
    for (index, node) in nodes.iter().enumerate() {
        let Node::Group { parts, close } = node else { continue };
        for (part, (_, body)) in parts.iter().enumerate() {
            for inner in smaller(body) {
                let mut parts = parts.clone();
                parts[part].1 = inner;
                let mut replaced = nodes.to_vec();
                replaced[index] = Node::Group {
                    parts,
                    close: close.clone(),
                };
                found.push(replaced);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_smaller_tree_lacks_something() {
        let tree = vec![
            Node::Lines("a".into()),
            Node::Group {
                parts: vec![("b".into(), vec![Node::Lines("c".into()), Node::Lines("d".into())])],
                close: "e".into(),
            },
        ];
        let all = smaller(&tree);
        assert!(all.contains(&vec![]) && all.contains(&vec![Node::Lines("a".into())]));
        assert!(all.iter().all(|smaller| *smaller != tree));
        assert!(all.iter().any(|smaller| {
            let mut text = String::new();
            smaller.iter().for_each(|node| node.write(&mut text));
            text == "abde"
        }));
    }
}
