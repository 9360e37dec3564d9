// A recorded step log as a source of the view.

/**
 * Reads JSON lines: the header, then the records.
 * @returns {{header: object, records: Array[]}}
 * @throws {Error} with the number of the line that is at fault.
 */
export function replaySource(text) {
  const lines = text.split("\n").filter((line) => line.trim());
  const [header, ...records] = lines.map((line, index) => {
    try {
      return JSON.parse(line);
    } catch {
      throw new Error(`line ${index + 1} of the step log is not JSON`);
    }
  });
  if (header?.version !== 1) throw new Error("the step log has no header of version 1");
  if (records[0]?.[0] !== "snapshot") throw new Error("the step log does not begin with a snapshot");
  return { header, records };
}
