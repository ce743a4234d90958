// MODEL TOKENS OUT [rank]: writes the hidden states of every token, or the numbers of a head, as llama.cpp computes them.
#include "llama.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
static void quiet(ggml_log_level l, const char *t, void *) { if (l == GGML_LOG_LEVEL_ERROR) fputs(t, stderr); }
int main(int argc, char **argv) {
  llama_log_set(quiet, nullptr);
  llama_backend_init();
  bool rank = argc > 4 && !strcmp(argv[4], "rank");
  auto mp = llama_model_default_params();
  llama_model *m = llama_model_load_from_file(argv[1], mp);
  if (!m) return 2;
  std::vector<llama_token> tokens;
  FILE *f = fopen(argv[2], "r");
  for (int x; fscanf(f, "%d", &x) == 1;) tokens.push_back(x);
  fclose(f);
  auto cp = llama_context_default_params();
  cp.n_ctx = cp.n_batch = cp.n_ubatch = 512;
  cp.n_threads = cp.n_threads_batch = 1;
  cp.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  cp.embeddings = true;
  cp.pooling_type = rank ? LLAMA_POOLING_TYPE_RANK : LLAMA_POOLING_TYPE_NONE;
  llama_context *c = llama_init_from_model(m, cp);
  if (!c) return 3;
  int n = tokens.size(), w = rank ? (int)llama_model_n_cls_out(m) : llama_model_n_embd(m), rows = rank ? 1 : n;
  llama_batch b = llama_batch_init(512, 0, 1);
  for (int i = 0; i < n; i++) { b.token[i] = tokens[i]; b.pos[i] = i; b.n_seq_id[i] = 1; b.seq_id[i][0] = 0; b.logits[i] = 1; }
  b.n_tokens = n;
  if (llama_encode(c, b)) return 4;
  FILE *o = fopen(argv[3], "wb");
  fwrite(&rows, 4, 1, o); fwrite(&w, 4, 1, o);
  for (int k = 0; k < rows; k++) {
    const float *p = rank ? llama_get_embeddings_seq(c, 0) : llama_get_embeddings_ith(c, k);
    if (!p) return 5;
    fwrite(p, 4, w, o);
  }
  fclose(o);
}
