//! Results as a table in Markdown.

/// A table whose columns are padded when it is printed.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these column heads.
    pub fn new(heads: &[&str]) -> Self {
        let rules = heads.iter().map(|_| "---".to_owned()).collect();
        Table { rows: vec![heads.iter().map(|head| (*head).to_owned()).collect(), rules] }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Prints it.
    pub fn print(&self) {
        println!("{self}");
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.rows.iter().try_for_each(|row| writeln!(f, "| {} |", row.join(" | ")))
    }
}

/// `a / b`, for people.
pub fn ratio(a: f64, b: f64) -> String {
    format!("{:.1} ×", a / b)
}
