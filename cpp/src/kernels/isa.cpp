#include "isa.h"

#include <cstdlib>
#include <cstring>

#if defined(__x86_64__) || defined(_M_X64)
#    define DSPARK_X86_64
#    if defined(_MSC_VER)
#        include <immintrin.h>
#        include <intrin.h>
#    else
#        include <cpuid.h>
#    endif
#elif defined(__aarch64__) && defined(__linux__)
#    include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#    include <sys/sysctl.h>
#endif

namespace dspark::kernels {

namespace {

struct features {
    bool avx2 = false, avx_vnni = false, avx512 = false, avx512_bf16 = false, neon_dotprod = false, neon_i8mm = false;
};

#if defined(DSPARK_X86_64)

struct registers {
    uint32_t a, b, c, d;
};

registers cpuid(uint32_t leaf, uint32_t sub) {
    registers r{};
#    if defined(_MSC_VER)
    int out[4];
    __cpuidex(out, (int) leaf, (int) sub);
    memcpy(&r, out, sizeof(r));
#    else
    __get_cpuid_count(leaf, sub, &r.a, &r.b, &r.c, &r.d);
#    endif
    return r;
}

// Which register files the operating system saves.
uint64_t saved_states() {
#    if defined(_MSC_VER)
    return _xgetbv(0);
#    else
    uint32_t a, d;
    __asm__("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    return (uint64_t) d << 32 | a;
#    endif
}

features detect() {
    features        f;
    const auto      bit = [](uint32_t word, int i) { return (word >> i & 1) != 0; };
    const registers one = cpuid(1, 0), seven = cpuid(7, 0), seven_one = cpuid(7, 1);
    if (!bit(one.c, 27)) { // OSXSAVE
        return f;
    }
    const uint64_t saved = saved_states();
    f.avx2        = (saved & 0x6) == 0x6 && bit(one.c, 12) && bit(one.c, 29) && bit(seven.b, 5); // FMA, F16C, AVX2
    f.avx_vnni    = f.avx2 && bit(seven_one.a, 4);
    f.avx512      = f.avx2 && (saved & 0xe6) == 0xe6 && bit(seven.b, 16) && bit(seven.b, 17) && bit(seven.b, 30) && bit(seven.b, 31) &&
               bit(seven.c, 11); // F, DQ, BW, VL, VNNI
    f.avx512_bf16 = f.avx512 && bit(seven_one.a, 5);
    return f;
}

#elif defined(__aarch64__) && defined(__linux__)

features detect() {
    features f;
    f.neon_dotprod = (getauxval(AT_HWCAP) & (1ul << 20)) != 0; // HWCAP_ASIMDDP
    f.neon_i8mm    = f.neon_dotprod && (getauxval(AT_HWCAP2) & (1ul << 13)) != 0; // HWCAP2_I8MM
    return f;
}

#else

features detect() {
    features f;
#    if defined(__aarch64__) && defined(__APPLE__)
    f.neon_dotprod = true; // every Apple processor of this architecture
    int    has     = 0;
    size_t size    = sizeof(has);
    f.neon_i8mm    = sysctlbyname("hw.optional.arm.FEAT_I8MM", &has, &size, nullptr, 0) == 0 && has != 0;
#    endif
    return f;
}

#endif

} // namespace

const kernel_table * find_kernels(const char * name) {
    const features       f      = detect();
    const kernel_table * best[] = {
        f.avx512_bf16 ? table_avx512_bf16() : nullptr,
        f.avx512 ? table_avx512() : nullptr,
        f.avx_vnni ? table_avx_vnni() : nullptr,
        f.avx2 ? table_avx2() : nullptr,
        f.neon_i8mm ? table_neon_i8mm() : nullptr,
        f.neon_dotprod ? table_neon() : nullptr,
    };
    for (const kernel_table * table : best) {
        if (table && (!name || std::strcmp(name, table->name) == 0)) {
            return table;
        }
    }
    return nullptr;
}

const kernel_table * kernels_of_this_machine() {
    static const kernel_table * const table = find_kernels(std::getenv("DSPARK_KERNELS_ISA"));
    return table;
}

} // namespace dspark::kernels
