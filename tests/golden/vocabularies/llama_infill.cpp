// usage: infill vocab.gguf < cases, a JSON object a line ; prints the ids of the prompt that llama.cpp's server makes, a line each
#include "common.h"
#include "llama.h"
#include "server-common.h"
#include <cstdio>
#include <iostream>
static void quiet(enum ggml_log_level l, const char * t, void *) { if (l >= GGML_LOG_LEVEL_ERROR) fputs(t, stderr); }
int main(int argc, char ** argv) {
    if (argc != 2) return 2;
    llama_log_set(quiet, nullptr);
    auto params = llama_model_default_params();
    params.vocab_only = true;
    llama_model * model = llama_model_load_from_file(argv[1], params);
    if (!model) return 1;
    const llama_vocab * vocab = llama_model_get_vocab(model);
    std::string line;
    while (std::getline(std::cin, line)) {
        json given = json::parse(line);
        auto prompt = common_tokenize(vocab, given.at("prompt").get<std::string>(), false, true);
        auto ids = format_prompt_infill(
            vocab, given.at("input_prefix"), given.at("input_suffix"), given.at("input_extra"),
            given.at("n_batch").get<int>(), given.at("n_predict").get<int>(), given.at("n_ctx").get<int>(), false, prompt);
        for (auto id : ids) printf("%d ", id);
        printf("\n");
    }
}
