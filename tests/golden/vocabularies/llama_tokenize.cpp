// usage: tok vocab.gguf [key=value ...] < texts separated by \0 ; prints ids a line each: "plain | special"
#include "llama-vocab.h"
#include "llama-model-loader.h"
#include "llama.h"
#include <iostream>
#include <iterator>
#include <cstdio>
// of src/llama.cpp, which is not compiled: no vocabulary is split over several files
int32_t llama_split_path(char *, size_t, const char *, int32_t, int32_t) { return 0; }
int32_t llama_split_prefix(char *, size_t, const char *, int32_t, int32_t) { return 0; }
static void quiet(enum ggml_log_level l, const char * t, void *) { if (l >= GGML_LOG_LEVEL_WARN) fputs(t, stderr); }
int main(int argc, char ** argv) {
    llama_log_set(quiet, nullptr);
    std::vector<std::string> splits;
    std::vector<llama_model_kv_override> ov;
    for (int i = 2; i < argc; i++) {
        std::string a = argv[i]; auto p = a.find('=');
        llama_model_kv_override o = {}; 
        snprintf(o.key, sizeof o.key, "%s", a.substr(0, p).c_str());
        std::string v = a.substr(p + 1);
        if (v == "true" || v == "false") { o.tag = LLAMA_KV_OVERRIDE_TYPE_BOOL; o.val_bool = v == "true"; }
        else { o.tag = LLAMA_KV_OVERRIDE_TYPE_STR; snprintf(o.val_str, sizeof o.val_str, "%s", v.c_str()); }
        ov.push_back(o);
    }
    ov.push_back({});
    try {
        llama_model_loader ml(nullptr, nullptr, nullptr, argv[1], splits, nullptr, LLAMA_LOAD_MODE_NONE, false, true, false, ov.data(), nullptr);
        LLM_KV kv(ml.get_arch());
        llama_vocab vocab;
        vocab.load(ml, kv);
        std::string all((std::istreambuf_iterator<char>(std::cin)), std::istreambuf_iterator<char>());
        printf("# n=%u type=%d bos=%d eos=%d addbos=%d addeos=%d prefix=%d\n", vocab.n_tokens(), (int)vocab.get_type(), vocab.token_bos(), vocab.token_eos(), vocab.get_add_bos(), vocab.get_add_eos(), vocab.get_add_space_prefix());
        size_t at = 0;
        while (at <= all.size()) {
            auto end = all.find('\0', at); if (end == std::string::npos) break;
            std::string text = all.substr(at, end - at);
            for (int special = 0; special < 2; special++) {
                auto ids = vocab.tokenize(text, false, special);
                for (auto id : ids) printf("%d ", id);
                printf(special ? "\n" : "| ");
            }
            at = end + 1;
        }
    } catch (const std::exception & e) { fprintf(stderr, "refused: %s\n", e.what()); return 2; }
}
