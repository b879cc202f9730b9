// In place of libFuzzer where the compiler has none:  fuzz_<target> N_MUTATIONS FOLDER...
// Runs the target on every file of the folders, then on mutations of them, the same on every machine.
#include "fuzz.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include <signal.h>
#include <unistd.h>

using input = std::vector<uint8_t>;

static const input * current = nullptr;

// What ended the process is kept as a file, to become a regression file.
static void keep() {
    FILE * file = current ? fopen("fuzz.crash", "wb") : nullptr;
    if (file) {
        fwrite(current->data(), 1, current->size(), file);
        fclose(file);
        fprintf(stderr, "the input is in fuzz.crash\n");
    }
}

static void on_abort(int signal_number) {
    signal(signal_number, SIG_DFL);
    keep();
    raise(signal_number);
}

static void run(const input & bytes) {
    current = &bytes;
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
    current = nullptr;
}

static void mutate(input & bytes, std::mt19937 & random) {
    const int n_steps = 1 + (int) (random() % 4);
    for (int step = 0; step < n_steps; ++step) {
        if (bytes.empty()) {
            bytes.push_back((uint8_t) random());
        }
        const size_t at   = random() % bytes.size();
        const size_t left = bytes.size() - at;
        switch (random() % 6) {
            case 0: bytes[at] = (uint8_t) (bytes[at] ^ 1u << random() % 8); break;
            case 1: bytes[at] = (uint8_t) random(); break;
            case 2: { // a number, where one of 4 or 8 bytes may stand
                const int64_t wild[] = {0, 1, -1, 255, INT32_MAX, INT32_MIN, (int64_t) UINT32_MAX, INT64_MAX, INT64_MIN, (int64_t) 1 << 40, 1 << 20, 7};
                const int64_t value  = wild[random() % 12];
                std::memcpy(bytes.data() + at, &value, std::min<size_t>(left, random() % 2 ? 8 : 4));
                break;
            }
            case 3: bytes.erase(bytes.begin() + (ptrdiff_t) at, bytes.begin() + (ptrdiff_t) (at + std::min<size_t>(left, 1 + random() % 16))); break;
            case 4: {
                const input part(bytes.begin() + (ptrdiff_t) at, bytes.begin() + (ptrdiff_t) (at + std::min<size_t>(left, 1 + random() % 32)));
                bytes.insert(bytes.begin() + (ptrdiff_t) (random() % bytes.size()), part.begin(), part.end());
                break;
            }
            default: bytes.resize(random() % 8 ? bytes.size() : at); break;
        }
    }
}

int main(int argc, char ** argv) {
    ASSERT(argc >= 3);
    signal(SIGABRT, on_abort);
    atexit(keep);
    std::vector<input> seeds;
    for (int i = 2; i < argc; ++i) {
        std::vector<std::filesystem::path> paths;
        if (std::filesystem::is_directory(argv[i])) {
            for (const auto & entry : std::filesystem::directory_iterator(argv[i])) {
                paths.push_back(entry.path());
            }
        }
        std::sort(paths.begin(), paths.end());
        for (const auto & path : paths) {
            std::ifstream file(path, std::ios::binary);
            seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
        }
    }
    ASSERT(!seeds.empty());
    for (const input & seed : seeds) {
        run(seed);
    }
    std::mt19937 random(20261202);
    const int    n_mutations = atoi(argv[1]);
    for (int i = 0; i < n_mutations; ++i) {
        input bytes = seeds[random() % seeds.size()];
        mutate(bytes, random);
        run(bytes);
    }
    printf("%zu files and %d mutations of them\n", seeds.size(), n_mutations);
    return 0;
}
