// CUDA's threads on a CPU: every thread of a block is a fiber; barriers and warp operations let the others catch up.
// Slow and literal. It knows only what primitives.cuh asks for.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

typedef unsigned short bf16;

#define __global__
#define __device__
#define __forceinline__ inline
#define __restrict__
#define device_function static inline
#define KERNEL(threads, blocks) static void
#define ARGUMENTS(type) const type&

struct uint4 { unsigned x, y, z, w; };
struct uint2 { unsigned x, y; };
struct float4 { float x, y, z, w; };
struct float2 { float x, y; };
struct dim3 { int x, y, z; };
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }

namespace emulator {
struct Lane {
    const void* pointer;
    unsigned a[4], b[2];
    float value;
};
struct Fiber {
    ucontext_t context;
    jmp_buf here;
    bool started, done;
    int waits_for_block, waits_in_warp;  // generations
    char* stack;
};
static dim3 block_index, block_size, grid_size;
static int thread;
static char* shared;
static std::vector<Fiber> fibers;
static std::vector<int> arrived_in_warp, warp_generation;
static std::vector<Lane> lanes[2];
static int arrived_in_block, block_generation;
static jmp_buf scheduler;
static void (*body)();

static void yield() {
    if (_setjmp(fibers[thread].here) == 0) _longjmp(scheduler, 1);
}
static void block_barrier() {
    int mine = block_generation;
    if (++arrived_in_block == block_size.x) { arrived_in_block = 0; block_generation++; return; }
    int me = thread;
    while (block_generation == mine) { yield(); thread = me; }
}
static void warp_barrier() {
    int w = thread / 32, mine = warp_generation[w], me = thread;
    int size = block_size.x - w * 32 < 32 ? block_size.x - w * 32 : 32;
    if (++arrived_in_warp[w] == size) { arrived_in_warp[w] = 0; warp_generation[w]++; return; }
    while (warp_generation[w] == mine) { yield(); thread = me; }
}
// Every lane lays something down and then sees what all laid down; two buffers, so that the next exchange may begin.
static std::vector<int> parity;
static const Lane* exchange(const Lane& mine) {
    int p = parity[thread] ^= 1;
    lanes[p][thread] = mine;
    warp_barrier();
    return &lanes[p][thread / 32 * 32];
}
static void entry() {
    body();
    fibers[thread].done = true;
    _longjmp(scheduler, 1);
}
static void run_block(int threads) {
    fibers.resize(threads);
    for (auto& f : fibers) {
        f.started = f.done = false;
        if (!f.stack) f.stack = (char*)malloc(256 * 1024);
    }
    arrived_in_warp.assign((threads + 31) / 32, 0);
    warp_generation.assign((threads + 31) / 32, 0);
    parity.assign(threads, 0);
    lanes[0].assign(threads + 32, Lane());
    lanes[1].assign(threads + 32, Lane());
    arrived_in_block = block_generation = 0;
    for (volatile bool any = true; any;) {
        any = false;
        for (volatile int t = 0; t < threads; t++) {
            if (fibers[t].done) continue;
            any = true;
            thread = t;
            if (_setjmp(scheduler) == 0) {
                if (!fibers[t].started) {
                    fibers[t].started = true;
                    getcontext(&fibers[t].context);
                    fibers[t].context.uc_stack.ss_sp = fibers[t].stack;
                    fibers[t].context.uc_stack.ss_size = 256 * 1024;
                    fibers[t].context.uc_link = nullptr;
                    makecontext(&fibers[t].context, (void (*)())entry, 0);
                    setcontext(&fibers[t].context);
                } else {
                    _longjmp(fibers[t].here, 1);
                }
            }
        }
    }
}
static void launch(void (*kernel)(), int gx, int gy, int gz, int threads, int shared_bytes) {
    body = kernel;
    grid_size = {gx, gy, gz};
    block_size = {threads, 1, 1};
    std::vector<char> memory(shared_bytes + 256);
    shared = (char*)(((uintptr_t)memory.data() + 127) / 128 * 128);
    for (int z = 0; z < gz; z++)
        for (int y = 0; y < gy; y++)
            for (int x = 0; x < gx; x++) {
                memset(memory.data(), 0xff, memory.size());  // NaN: what nobody wrote must not be read
                block_index = {x, y, z};
                run_block(threads);
            }
}
}  // namespace emulator

#define SHARED_MEMORY(name) char* name = emulator::shared
#define threadIdx (dim3{emulator::thread, 0, 0})
#define blockIdx emulator::block_index
#define blockDim emulator::block_size
#define gridDim emulator::grid_size
#define __syncthreads emulator::block_barrier
#define __syncwarp emulator::warp_barrier

static inline float from_bits(unsigned bits) { float x; memcpy(&x, &bits, 4); return x; }
static inline unsigned to_bits(float x) { unsigned bits; memcpy(&bits, &x, 4); return bits; }
static inline unsigned rounded(float x) {
    unsigned bits = to_bits(x);
    if (x != x) return 0x7fff;
    return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}
static inline unsigned pack(float low, float high) { return rounded(low) | rounded(high) << 16; }
static inline unsigned pack_positive(float low, float high) { return pack(low > 0 ? low : 0, high > 0 ? high : 0); }
static inline float half_of(unsigned two, int which) { return from_bits(which ? two & 0xffff0000u : two << 16); }
static inline unsigned fused(unsigned a, unsigned x, unsigned b) {
    // A product of two bf16 is exact in float; the sum is rounded to double first, which changes no bf16 but by accident.
    double y[2];
    for (int i = 0; i < 2; i++) y[i] = (double)half_of(a, i) * half_of(x, i) + half_of(b, i);
    return pack((float)y[0], (float)y[1]);
}
static inline unsigned fused_positive(unsigned a, unsigned x, unsigned b) {
    const unsigned y = fused(a, x, b);
    return (y & 0x8000u ? 0 : y & 0xffffu) | (y & 0x80000000u ? 0 : y & 0xffff0000u);
}
static inline unsigned above_zero(unsigned two) {
    return (half_of(two, 0) > 0 ? 0xffffu : 0u) | (half_of(two, 1) > 0 ? 0xffff0000u : 0u);
}
static inline unsigned bytes_of(unsigned a, unsigned numbers) {
    unsigned bytes = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned number = numbers >> 4 * i & 15;
        if (number < 4) bytes |= (a >> 8 * number & 255) << 8 * i;
    }
    return bytes;
}
static inline float rsqrt_of(float x) { return 1 / std::sqrt(x); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
template <class T> static inline T __ldg(const T* p) { return *p; }
static inline float atomicAdd(float* p, float x) { float before = *p; *p += x; return before; }
#define __expf expf
#define __logf logf
static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }
static inline float max(float a, float b) { return a > b ? a : b; }
static inline float min(float a, float b) { return a < b ? a : b; }

static inline float shuffle_xor(float x, int mask) {
    emulator::Lane mine{};
    mine.value = x;
    return emulator::exchange(mine)[(emulator::thread % 32) ^ mask].value;
}

static inline void copy_async(void* to, const void* from) { memcpy(to, from, 16); }
static inline void copies_done() {}
static inline void copies_asked() {}
template <int last> static inline void copies_done_but() {}

static inline unsigned transpose(unsigned two) {
    emulator::Lane mine{};
    mine.a[0] = two;
    const emulator::Lane* all = emulator::exchange(mine);
    int lane = emulator::thread % 32, g = lane / 4, q = lane % 4;
    auto element = [&](int row, int column) { return all[row * 4 + column / 2].a[0] >> (column % 2 * 16) & 0xffff; };
    return element(2 * q, g) | element(2 * q + 1, g) << 16;
}

static inline float shuffle_from(float x, int lane) {
    emulator::Lane mine{};
    mine.value = x;
    return emulator::exchange(mine)[lane & 31].value;
}

template <bool transposed, int N>
static inline void load_matrices(unsigned (&r)[N], const void* row) {
    emulator::Lane mine{};
    mine.pointer = row;
    const emulator::Lane* all = emulator::exchange(mine);
    int lane = emulator::thread % 32, g = lane / 4, q = lane % 4;
    for (int i = 0; i < N; i++) {
        auto element = [&](int line, int column) { return ((const bf16*)all[i * 8 + line].pointer)[column]; };
        r[i] = transposed ? element(2 * q, g) | (unsigned)element(2 * q + 1, g) << 16
                          : element(g, 2 * q) | (unsigned)element(g, 2 * q + 1) << 16;
    }
}

template <int K>
static inline void emulated_mma(float (&d)[4], const emulator::Lane& mine) {
    const emulator::Lane* all = emulator::exchange(mine);
    int lane = emulator::thread % 32, g = lane / 4, q = lane % 4;
    for (int i = 0; i < 4; i++) {
        int row = g + (i / 2) * 8, column = 2 * q + i % 2;
        float sum = 0;
        for (int k = 0; k < K; k++) {
            float a = half_of(all[row % 8 * 4 + k % 8 / 2].a[(row >= 8) + 2 * (k >= 8)], k % 2);
            float b = half_of(all[column * 4 + k % 8 / 2].b[k >= 8], k % 2);
            sum += a * b;
        }
        d[i] += sum;
    }
}
static inline void multiply_add(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    emulator::Lane mine{};
    memcpy(mine.a, a, 16);
    mine.b[0] = b0;
    mine.b[1] = b1;
    emulated_mma<16>(d, mine);
}
static inline void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    for (float& value : d) value = 0;
    multiply_add(d, a, b0, b1);
}
static inline void multiply_add(float (&d)[4], const unsigned (&a)[2], unsigned b) {
    emulator::Lane mine{};
    memcpy(mine.a, a, 8);
    mine.b[0] = b;
    emulated_mma<8>(d, mine);
}
#define EMULATED 1
