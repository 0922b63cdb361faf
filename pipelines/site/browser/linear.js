// Small matrices, as rows of numbers: eigenvectors, rotations, and systems of equations.

// Turns that bring a matrix to its axes, each of which takes away most of what is left.
const SWEEPS = 12;

/** @typedef {number[][]} Rows */

export const dot = (one, other) =>
  one.reduce((sum, part, n) => sum + part * other[n], 0);

/** @param {number[]} one @param {number[]} other */
export function cross(one, other) {
  const [a, b, c] = one;
  const [x, y, z] = other;
  return [b * z - c * y, c * x - a * z, a * y - b * x];
}

/** @returns {number[]} a row for each of the rows: its products with a vector */
export const times = (rows, vector) => rows.map((row) => dot(row, vector));

/** @returns {Rows} */
export const transposed = (rows) => rows[0].map((_, n) => rows.map((row) => row[n]));

/** @returns {Rows} */
export function multiplied(one, other) {
  const columns = transposed(other);
  return one.map((row) => columns.map((column) => dot(row, column)));
}

/**
 * Eigenvalues of a symmetric matrix, the largest first, and its eigenvectors (Jacobi's turns).
 * @param {Rows} matrix
 * @returns {{ values: number[], vectors: Rows }}
 */
export function eigen(matrix) {
  const size = matrix.length;
  const left = matrix.map((row) => [...row]);
  const columns = matrix.map((row, n) => row.map((_, at) => n === at ? 1 : 0));
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    for (let p = 0; p < size; p++) {
      for (let q = p + 1; q < size; q++) {
        if (left[p][q]) turn(left, columns, p, q);
      }
    }
  }
  const order = matrix.map((_, n) => n).sort((p, q) => left[q][q] - left[p][p]);
  const vectors = transposed(columns);
  return {
    values: order.map((n) => left[n][n]),
    vectors: order.map((n) => vectors[n]),
  };
}

// Turn two axes so that a matrix has 0 where they cross.
function turn(left, columns, p, q) {
  const angle = Math.atan2(2 * left[p][q], left[q][q] - left[p][p]) / 2;
  const cosine = Math.cos(angle);
  const sine = Math.sin(angle);
  for (const row of [...left, ...columns]) {
    const [one, other] = [row[p], row[q]];
    row[p] = cosine * one - sine * other;
    row[q] = sine * one + cosine * other;
  }
  for (let n = 0; n < left.length; n++) {
    const [one, other] = [left[p][n], left[q][n]];
    left[p][n] = cosine * one - sine * other;
    left[q][n] = sine * one + cosine * other;
  }
}

/**
 * The singular values of a matrix of three rows and columns, the largest first, and of each the
 * direction that it takes to another one: `from` and `to`, unit vectors.
 * @param {Rows} matrix
 */
export function singular(matrix) {
  const { values, vectors } = eigen(multiplied(transposed(matrix), matrix));
  const sizes = values.map((value) => Math.sqrt(Math.max(value, 0)));
  const to = vectors.map((vector, n) =>
    times(matrix, vector).map((part) => part / sizes[n])
  );
  return { sizes, from: vectors, to };
}

/** @returns {Rows} what solves a system of equations for each column of `wanted` */
export function solved(matrix, wanted) {
  const rows = matrix.map((row, n) => [...row, ...wanted[n]]);
  const size = matrix.length;
  for (let n = 0; n < size; n++) {
    // The row with the largest number, by which the others are cleared.
    let best = n;
    for (let row = n; row < size; row++) {
      if (Math.abs(rows[row][n]) > Math.abs(rows[best][n])) best = row;
    }
    [rows[n], rows[best]] = [rows[best], rows[n]];
    const pivot = rows[n][n];
    rows[n] = rows[n].map((value) => value / pivot);
    for (let row = 0; row < size; row++) {
      if (row === n) continue;
      const by = rows[row][n];
      rows[row] = rows[row].map((value, at) => value - by * rows[n][at]);
    }
  }
  return rows.map((row) => row.slice(size));
}
