//! The Reed-Solomon code itself: arithmetic in GF(2⁸) modulo x⁸ + x⁴ + x³ + x² + 1, and a systematic code over it.

/// A systematic code of `data` and `parity` shards, at most 256 together: parity shard `p` is the sum of the data
/// shards, each times a coefficient.
#[derive(Debug, Clone)]
pub(super) struct Code {
    data: usize,
    /// One row per parity shard, one coefficient per data shard.
    rows: Vec<Vec<u8>>,
}

impl Code {
    /// The code that results from the Vandermonde matrix of the points 0, 1, 2, … multiplied by the inverse of its
    /// top square.
    ///
    /// Seen as polynomials: data shard `d` is the value at the point `d`, and parity is the value of the same
    /// polynomial at the following points. So a coefficient is a Lagrange basis polynomial at such a point, and no
    /// matrix needs to be inverted.
    pub(super) fn new(data: usize, parity: usize) -> Self {
        let product = |point: usize, except: Option<usize>| {
            (0..data).filter(|&k| Some(k) != except).fold(1, |all, k| multiply(all, (point ^ k) as u8))
        };
        let denominators: Vec<u8> = (0..data).map(|d| product(d, Some(d))).collect();
        let row = |point: usize| {
            let all = product(point, None);
            let coefficient = |d: usize| divide(all, multiply((point ^ d) as u8, denominators[d]));
            (0..data).map(coefficient).collect()
        };
        Code { data, rows: (data..data + parity).map(row).collect() }
    }

    pub(super) fn data(&self) -> usize {
        self.data
    }

    pub(super) fn parity(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn total(&self) -> usize {
        self.data + self.rows.len()
    }

    /// Computes the parity shards of the data shards in `data`; all shards have `shard` bytes.
    pub(super) fn encode(&self, data: &[u8], shard: usize, parity: &mut [u8]) {
        parity.fill(0);
        for (row, parity) in self.rows.iter().zip(parity.chunks_exact_mut(shard)) {
            for (&coefficient, data) in row.iter().zip(data.chunks_exact(shard)) {
                multiply_add(coefficient, data, parity);
            }
        }
    }

    /// Computes the data shards of `block` (data, then parity) that are not `intact` from the others; false if too
    /// few are. Damaged parity shards stay as they are.
    pub(super) fn repair(&self, block: &mut [u8], shard: usize, intact: &[bool]) -> bool {
        let missing: Vec<usize> = (0..self.data).filter(|&d| !intact[d]).collect();
        if missing.is_empty() {
            return true;
        }
        let usable: Vec<usize> =
            (0..self.parity()).filter(|&p| intact[self.data + p]).take(missing.len()).collect();
        if usable.len() < missing.len() {
            return false;
        }
        let (data, parity) = block.split_at_mut(self.data * shard);
        // What the intact shards leave of each parity shard is a sum over the missing ones: as many equations as
        // unknowns, and every square part of this code's matrix can be inverted.
        let mut equations: Vec<(Vec<u8>, Vec<u8>)> = Vec::with_capacity(missing.len());
        for p in usable {
            let mut rest = parity[p * shard..(p + 1) * shard].to_vec();
            for (d, data) in data.chunks_exact(shard).enumerate().filter(|&(d, _)| intact[d]) {
                multiply_add(self.rows[p][d], data, &mut rest);
            }
            equations.push((missing.iter().map(|&d| self.rows[p][d]).collect(), rest));
        }
        if !solve(&mut equations) {
            return false;
        }
        for (&d, (_, solution)) in missing.iter().zip(&equations) {
            data[d * shard..(d + 1) * shard].copy_from_slice(solution);
        }
        true
    }
}

/// Gauss-Jordan elimination: afterwards the right side of equation `i` is unknown `i`. False if there is no unique
/// solution.
fn solve(equations: &mut [(Vec<u8>, Vec<u8>)]) -> bool {
    for column in 0..equations.len() {
        let Some(pivot) = (column..equations.len()).find(|&row| equations[row].0[column] != 0) else {
            return false;
        };
        equations.swap(column, pivot);
        let inverse = divide(1, equations[column].0[column]);
        let (left, right) = &mut equations[column];
        for byte in left.iter_mut().chain(right.iter_mut()) {
            *byte = multiply(*byte, inverse);
        }
        let (left, right) = equations[column].clone();
        for (row, equation) in equations.iter_mut().enumerate().filter(|&(row, _)| row != column) {
            debug_assert_ne!(row, column);
            let factor = equation.0[column];
            multiply_add(factor, &left, &mut equation.0);
            multiply_add(factor, &right, &mut equation.1);
        }
    }
    true
}

/// Adds `factor · data` to `sum`, byte by byte. Written bit by bit of the factor, without tables, so that the
/// compiler can do many bytes at once.
fn multiply_add(factor: u8, data: &[u8], sum: &mut [u8]) {
    let masks: [u8; 8] = std::array::from_fn(|bit| 0u8.wrapping_sub(factor >> bit & 1));
    for (sum, &byte) in sum.iter_mut().zip(data) {
        let mut power = byte;
        let mut product = 0;
        for mask in masks {
            product ^= power & mask;
            power = double(power);
        }
        *sum ^= product;
    }
}

/// `value · x`.
#[inline(always)]
const fn double(value: u8) -> u8 {
    (value << 1) ^ (0x1d & 0u8.wrapping_sub(value >> 7))
}

fn multiply(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    POWERS[(usize::from(LOGARITHMS[usize::from(a)]) + usize::from(LOGARITHMS[usize::from(b)])) % 255]
}

/// `a / b`, where `b` is not zero.
fn divide(a: u8, b: u8) -> u8 {
    if a == 0 {
        return 0;
    }
    POWERS[(usize::from(LOGARITHMS[usize::from(a)]) + 255 - usize::from(LOGARITHMS[usize::from(b)])) % 255]
}

/// Powers of the generator x.
static POWERS: [u8; 255] = {
    let mut table = [1; 255];
    let mut exponent = 1;
    while exponent < 255 {
        table[exponent] = double(table[exponent - 1]);
        exponent += 1;
    }
    table
};

/// The exponents that lead back to each value but zero.
static LOGARITHMS: [u8; 256] = {
    let mut table = [0; 256];
    let mut exponent = 0;
    while exponent < 255 {
        table[POWERS[exponent] as usize] = exponent as u8;
        exponent += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_small_code_has_the_rows_of_the_specification() {
        let code = Code::new(6, 2);
        assert_eq!(code.rows, [vec![7, 6, 5, 4, 3, 2], vec![6, 7, 4, 5, 2, 3]]);
    }

    #[test]
    fn both_ways_to_multiply_agree() {
        let all: Vec<u8> = (0..=255).collect();
        for factor in 0..=255 {
            let mut products = vec![0; 256];
            multiply_add(factor, &all, &mut products);
            for (&value, &product) in all.iter().zip(&products) {
                assert_eq!(product, multiply(factor, value));
                if factor != 0 {
                    assert_eq!(divide(product, factor), value);
                }
            }
        }
    }
}
