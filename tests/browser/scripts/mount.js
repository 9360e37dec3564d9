async () => {
  const { mountEngineView } = await import("/ui/engine/engine_view.js");
  const place = document.querySelector("#engine-view");
  place.view.destroy();
  const header = {
    version: 1, release: "0", started: "", model: "built-in", device: "cpu", dtype: "bfloat16", block_size: 16, num_blocks: 512,
    windows: [null], max_num_seqs: 8, max_num_batched_tokens: 512, max_model_len: 1024, prefix_caching: true, has_words: true,
  };
  const subscribe = (onRecords, onStatus, onHeader, onConnection) => {
    window.feed = onRecords;
    onHeader(header);
    onConnection("live");
    return () => {};
  };
  mountEngineView(place, { header: null, subscribe });
  feed([["snapshot", 0, 0, [], [[]], 0, {}, 0, 0, 0]]);
  window.fed = 0;
}
