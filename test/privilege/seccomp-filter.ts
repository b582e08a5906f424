// Compiles a seccomp profile, in the format of OCI and of the kubelet, to the BPF program that the kernel loads. Pure.

import type { ArgumentRule, SeccompProfile } from '../../packaging/privileges.ts'
import { syscallNumbers } from './syscall-numbers.ts'

/** One instruction: operation, jumps if true and if false, and the operand. */
export type Instruction = readonly [code: number, ifTrue: number, ifFalse: number, operand: number]

const LOAD = 0x20
const AND = 0x54
export const JUMP_EQUAL = 0x15
export const JUMP_NOT_LESS = 0x35
export const RETURN = 0x06

const AUDIT_ARCH_X86_64 = 0xc000003e
/** Calls of the x32 interface have this bit in their number. */
const X32_BIT = 0x40000000
const numberOffset = 0
const architectureOffset = 4
const argumentOffset = (index: number): number => 16 + 8 * index

const ALLOW = 0x7fff0000
const KILL_PROCESS = 0x80000000
const ERRNO = 0x00050000

function actionCode(action: string, errno = 1): number {
  if (action === 'SCMP_ACT_ALLOW') return ALLOW
  if (action === 'SCMP_ACT_KILL_PROCESS') return KILL_PROCESS
  if (action === 'SCMP_ACT_ERRNO') return ERRNO | errno
  throw new Error(`the action ${action} is not supported`)
}

const back = (action: number): Instruction => [RETURN, 0, 0, action]

/** Compiles for x86-64. Names that this architecture does not have are left out, as container runtimes do. */
export function compileProfile(profile: SeccompProfile): readonly Instruction[] {
  const otherwise = actionCode(profile.defaultAction, profile.defaultErrnoRet)
  const program: Instruction[] = [
    [LOAD, 0, 0, architectureOffset],
    [JUMP_EQUAL, 1, 0, AUDIT_ARCH_X86_64],
    back(KILL_PROCESS),
    [LOAD, 0, 0, numberOffset],
    [JUMP_NOT_LESS, 0, 1, X32_BIT],
    back(otherwise),
  ]
  for (const rule of profile.syscalls) {
    const action = actionCode(rule.action, rule.errnoRet)
    for (const name of rule.names) {
      const number = syscallNumbers.get(name)
      if (number !== undefined) program.push(...compileRule(number, rule.args ?? [], action))
    }
  }
  return [...program, back(otherwise)]
}

/** Continues behind the rule, with the number of the call loaded, unless the call and all its arguments match. */
function compileRule(number: number, args: readonly ArgumentRule[], action: number): readonly Instruction[] {
  if (args.length === 0) return [[JUMP_EQUAL, 0, 1, number], back(action)]
  const comparisons = args.flatMap(compareArgument)
  const body: Instruction[] = [...comparisons, [RETURN, 0, 0, action]]
  const jumps = body.map((one, i): Instruction => {
    const toEnd = body.length - i - 1
    return one[0] === JUMP_EQUAL ? [JUMP_EQUAL, 0, toEnd, one[3]] : one
  })
  return [[JUMP_EQUAL, 0, body.length + 1, number], ...jumps, [LOAD, 0, 0, numberOffset]]
}

function compareArgument({ index, value, valueTwo = 0, op }: ArgumentRule): readonly Instruction[] {
  if (op !== 'SCMP_CMP_EQ' && op !== 'SCMP_CMP_MASKED_EQ') throw new Error(`the comparison ${op} is not supported`)
  const [mask, wanted] = op === 'SCMP_CMP_EQ' ? [2 ** 64 - 1, value] : [value, valueTwo]
  return [
    ...compareWord(argumentOffset(index), mask === 2 ** 64 - 1 ? 0xffffffff : lowWord(mask), lowWord(wanted)),
    ...compareWord(argumentOffset(index) + 4, mask === 2 ** 64 - 1 ? 0xffffffff : highWord(mask), highWord(wanted)),
  ]
}

const lowWord = (value: number): number => value % 2 ** 32
const highWord = (value: number): number => Math.floor(value / 2 ** 32)

const compareWord = (offset: number, mask: number, wanted: number): readonly Instruction[] => [
  [LOAD, 0, 0, offset],
  [AND, 0, 0, mask],
  [JUMP_EQUAL, 0, 0, wanted],
]

/** The instructions as an array of struct sock_filter. */
export function encodeProgram(program: readonly Instruction[]): Uint8Array {
  const bytes = Buffer.alloc(program.length * 8)
  for (const [i, [code, ifTrue, ifFalse, operand]] of program.entries()) {
    bytes.writeUInt16LE(code, 8 * i)
    bytes.writeUInt8(ifTrue, 8 * i + 2)
    bytes.writeUInt8(ifFalse, 8 * i + 3)
    bytes.writeUInt32LE(operand >>> 0, 8 * i + 4)
  }
  return bytes
}

/** The profile that kills the process at a call that it does not name, so that a test cannot overlook the call. */
export const killing = (profile: SeccompProfile): SeccompProfile => ({
  ...profile,
  defaultAction: 'SCMP_ACT_KILL_PROCESS',
})

/** The names of the calls that the profile allows, with any arguments or some. */
export const allowedNames = (profile: SeccompProfile): ReadonlySet<string> =>
  new Set(profile.syscalls.flatMap(({ names, action }) => (action === 'SCMP_ACT_ALLOW' ? names : [])))
