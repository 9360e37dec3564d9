// Where the cells of a block map lie: as large as fits, and several blocks to a cell where even the smallest do not.

const LARGEST_CELL = 64;
const SMALLEST_CELL = 3;

export class BlockLayout {
  constructor(numBlocks, width, height) {
    this.numBlocks = numBlocks;
    this.perCell = 1;
    let cell = largestCell(numBlocks, width, height);
    while (cell < SMALLEST_CELL) {
      this.perCell += 1;
      cell = largestCell(Math.ceil(numBlocks / this.perCell), width, height);
    }
    this.cell = cell;
    this.gap = cell >= 12 ? 2 : cell >= 5 ? 1 : 0.5;
    this.columns = Math.max(Math.floor(width / cell), 1);
    this.numCells = Math.ceil(numBlocks / this.perCell);
    this.height = Math.ceil(this.numCells / this.columns) * cell;
  }

  /** The corner of a cell; cells count from 0, and blocks from 1. */
  corner(index) {
    return { x: (index % this.columns) * this.cell, y: Math.floor(index / this.columns) * this.cell };
  }

  cellOf(block) {
    return Math.floor((block - 1) / this.perCell);
  }

  /** The first block of the cell at a place; null where there is none. */
  blockAt(x, y) {
    const column = Math.floor(x / this.cell);
    const index = Math.floor(y / this.cell) * this.columns + column;
    if (column < 0 || column >= this.columns || index < 0 || index >= this.numCells) return null;
    return index * this.perCell + 1;
  }
}

function largestCell(count, width, height) {
  let cell = Math.min(LARGEST_CELL, Math.floor(Math.sqrt((width * height) / count)) + 1);
  while (cell > 1 && Math.ceil(count / Math.max(Math.floor(width / cell), 1)) * cell > height) cell -= 1;
  return cell;
}
