/* Runs the machine instructions of AMX on a processor of x86 that lacks them: each raises SIGILL, and the handler does what the stand-in
   does. So the code that the compiler makes for the package is run, and not only its sources. For one thread, without signals blocked.

   Encodings: Intel, Software Developer's Manual, volume 2. All have a VEX prefix of three bytes: C4, then R X B and the map, inverted,
   then W, a register, inverted, and the number of a legacy prefix. */
#define _GNU_SOURCE
#include <signal.h>
#include <ucontext.h>

#include <immintrin.h>

enum { NONE, P66, PF3, PF2 };

static const int REGISTERS[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                  REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

static struct sigaction before;
static long emulated;

/* The operand in memory of an instruction of which `at` is the ModRM byte: its address (without the index) and its scaled index. Returns
   the length from the ModRM byte on, or 0 for a form that is not known. */
static int memory_operand(const uint8_t *at, const greg_t *registers, int x, int b, char **address, long *index) {
  int mod = at[0] >> 6, rm = at[0] & 7, length = 1, base = rm;
  int32_t displacement = 0;
  *index = 0;
  if (rm == 4) {
    int number = (at[1] >> 3 & 7) | x;
    base = at[1] & 7;
    if (number != 4) *index = (long)registers[REGISTERS[number]] << (at[1] >> 6);
    length = 2;
  }
  if (mod == 0 && base == 5) return 0; /* relative to the instruction, or without a base */
  if (mod == 1) displacement = (int8_t)at[length], length += 1;
  if (mod == 2) memcpy(&displacement, at + length, 4), length += 4;
  *address = (char *)registers[REGISTERS[base | b]] + displacement;
  return length;
}

/* Emulate the instruction at `at`; return its length, or 0 for another one. */
static int emulate(const uint8_t *at, const greg_t *registers) {
  if (at[0] != 0xc4 || (at[1] & 31) != 2) return 0;
  int x = at[1] & 0x40 ? 0 : 8, b = at[1] & 0x20 ? 0 : 8, prefix = at[2] & 3, operation = at[3], modrm = at[4];
  int reg = modrm >> 3 & 7, rm = modrm & 7, third = ~at[2] >> 3 & 7;
  char *address;
  long index;
  if (operation == 0x5e && prefix == PF3) return _tile_dpbsud(reg, rm, third), 5;
  if (operation == 0x49 && prefix == NONE && modrm == 0xc0) return _tile_release(), 5;
  if (operation == 0x49 && prefix == PF2 && modrm >> 6 == 3) return _tile_zero(reg), 5;
  int length = modrm >> 6 == 3 ? 0 : memory_operand(at + 4, registers, x, b, &address, &index);
  if (!length) return 0;
  if (operation == 0x49 && prefix == NONE) return _tile_loadconfig(address + index), 4 + length;
  if (operation == 0x4b && prefix == PF2) return _tile_loadd(reg, address, index), 4 + length;
  if (operation == 0x4b && prefix == PF3) return _tile_stored(reg, address, index), 4 + length;
  return 0;
}

static void handle(int signal, siginfo_t *info, void *context) {
  (void)signal;
  (void)info;
  greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
  int length = emulate((const uint8_t *)registers[REG_RIP], registers);
  if (!length) sigaction(SIGILL, &before, NULL); /* it raises again */
  registers[REG_RIP] += length;
  emulated += length > 0;
}

void start_emulation(void) {
  struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO};
  emulated = 0;
  sigaction(SIGILL, &action, &before);
}

long count_emulated(void) { return emulated; }

void end_emulation(void) { sigaction(SIGILL, &before, NULL); }
