// The samplers of llama.cpp on given logits: reads cases from standard input, and writes what each leaves.
//
// A case is one line of words. "case N", N logits, then samplers with their numbers, and "end". History comes first for DRY and the
// penalties: "history COUNT ids". Each answer is a line: the number of tokens, then ids with probabilities, in the order of ids.
// For mirostat: "mirostat VERSION TAU EETA DRAWS" draws DRAWS times and writes "token mu" for each, mu computed from what is left.
#include "llama.h"
#include "llama-sampler.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

struct llama_sampler * llama_sampler_init_dry_testing(float, float, int32_t, int32_t, const std::vector<std::vector<llama_token>> &);

static float number() {
    double x;
    std::cin >> x;
    return (float) x;
}

static std::vector<llama_token> tokens() {
    std::vector<llama_token> found((size_t) number());
    for (auto & token : found) token = (llama_token) number();
    return found;
}

static llama_sampler * read_sampler(const std::string & name, int n_vocab) {
    if (name == "top_n_sigma") return llama_sampler_init_top_n_sigma(number());
    if (name == "top_k") return llama_sampler_init_top_k((int32_t) number());
    if (name == "typical_p") { float p = number(); return llama_sampler_init_typical(p, (size_t) number()); }
    if (name == "top_p") { float p = number(); return llama_sampler_init_top_p(p, (size_t) number()); }
    if (name == "min_p") { float p = number(); return llama_sampler_init_min_p(p, (size_t) number()); }
    if (name == "xtc") { float p = number(), t = number(); return llama_sampler_init_xtc(p, t, (size_t) number(), 1); }
    if (name == "temperature") { float t = number(), range = number(); return llama_sampler_init_temp_ext(t, range, number()); }
    if (name == "penalties") { float n = number(), repeat = number(), frequency = number();
        return llama_sampler_init_penalties(n_vocab, (int32_t) n, repeat, frequency, number()); }
    if (name == "dry") {
        float multiplier = number(), base = number(), allowed = number(), last = number();
        std::vector<std::vector<llama_token>> breakers((size_t) number());
        for (auto & breaker : breakers) breaker = tokens();
        return llama_sampler_init_dry_testing(multiplier, base, (int32_t) allowed, (int32_t) last, breakers);
    }
    std::fprintf(stderr, "no sampler %s\n", name.c_str());
    std::exit(1);
}

static std::vector<llama_token_data> entries_of(const std::vector<float> & logits) {
    std::vector<llama_token_data> entries;
    for (size_t i = 0; i < logits.size(); i++) entries.push_back({(llama_token) i, logits[i], 0.0f});
    return entries;
}

static void write_rest(llama_token_data_array rest) {
    std::vector<llama_token_data> kept(rest.data, rest.data + rest.size);
    kept.erase(std::remove_if(kept.begin(), kept.end(), [](const llama_token_data & t) { return t.logit == -INFINITY; }), kept.end());
    std::sort(kept.begin(), kept.end(), [](const llama_token_data & a, const llama_token_data & b) { return a.id < b.id; });
    double best = -INFINITY, sum = 0;
    for (auto & t : kept) best = std::max(best, (double) t.logit);
    for (auto & t : kept) sum += std::exp(t.logit - best);
    std::printf("%zu", kept.size());
    for (auto & t : kept) std::printf(" %d %.9g", t.id, std::exp(t.logit - best) / sum);
    std::printf("\n");
}

// Each draw is of the same logits; what is left, and its probabilities, follow from mu before the draw.
static void write_mirostat(const std::vector<float> & logits) {
    int version = (int) number();
    float tau = number(), eta = number();
    int draws = (int) number();
    int n = (int) logits.size();
    llama_sampler * sampler = version == 1 ? llama_sampler_init_mirostat(n, 7, tau, eta, 100) : llama_sampler_init_mirostat_v2(7, tau, eta);
    std::printf("%d", draws);
    for (int i = 0; i < draws; i++) {
        auto entries = entries_of(logits);
        llama_token_data_array rest = {entries.data(), entries.size(), -1, false};
        llama_sampler_apply(sampler, &rest);
        std::printf(" %d %zu %.9g", rest.data[rest.selected].id, rest.size, rest.data[rest.selected].p);
    }
    std::printf("\n");
    llama_sampler_free(sampler);
}

int main() {
    std::string word;
    while (std::cin >> word) {
        std::vector<float> logits((size_t) number());
        std::vector<llama_token> history;
        for (auto & logit : logits) logit = number();
        auto entries = entries_of(logits);
        llama_token_data_array rest = {entries.data(), entries.size(), -1, false};
        while (std::cin >> word && word != "end") {
            if (word == "history") { history = tokens(); continue; }
            if (word == "mirostat") { write_mirostat(logits); rest.size = 0; continue; }
            llama_sampler * sampler = read_sampler(word, (int) logits.size());
            for (auto token : history) llama_sampler_accept(sampler, token);
            llama_sampler_apply(sampler, &rest);
            llama_sampler_free(sampler);
        }
        if (rest.size) write_rest(rest);
    }
}
