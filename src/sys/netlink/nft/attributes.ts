// The attribute numbers of nf_tables, one object per enum of linux/netfilter/nf_tables.h: NFTA_PAYLOAD.DREG is NFTA_PAYLOAD_DREG. Pure.

export const NFTA_LIST = { ELEM: 1 } as const

// ---- Objects. ----

export const NFTA_TABLE = { NAME: 1, FLAGS: 2, USERDATA: 6 } as const
export const NFTA_CHAIN = { TABLE: 1, NAME: 3, HOOK: 4, POLICY: 5, USE: 6, TYPE: 7, USERDATA: 12 } as const
export const NFTA_HOOK = { HOOKNUM: 1, PRIORITY: 2 } as const
export const NFTA_RULE = { TABLE: 1, CHAIN: 2, EXPRESSIONS: 4, USERDATA: 7 } as const
export const NFTA_SET = {
  TABLE: 1,
  NAME: 2,
  FLAGS: 3,
  KEY_TYPE: 4,
  KEY_LEN: 5,
  DATA_TYPE: 6,
  DATA_LEN: 7,
  DESC: 9,
  ID: 10,
  TIMEOUT: 11,
  USERDATA: 13,
  EXPR: 17,
} as const
export const NFTA_SET_DESC = { SIZE: 1, CONCAT: 2 } as const
export const NFTA_SET_FIELD = { LEN: 1 } as const
export const NFTA_SET_ELEM_LIST = { TABLE: 1, SET: 2, ELEMENTS: 3, SET_ID: 4 } as const
export const NFTA_SET_ELEM = { KEY: 1, DATA: 2, FLAGS: 3, TIMEOUT: 4, USERDATA: 6, EXPR: 7, KEY_END: 10 } as const
export const NFTA_OBJ = { TABLE: 1, NAME: 2, TYPE: 3, DATA: 4, USERDATA: 8 } as const
export const NFTA_GEN = { ID: 1, PROC_PID: 2, PROC_NAME: 3 } as const

// ---- Expressions and their data. ----

export const NFTA_DATA = { VALUE: 1, VERDICT: 2 } as const
export const NFTA_VERDICT = { CODE: 1, CHAIN: 2 } as const
export const NFTA_EXPR = { NAME: 1, DATA: 2 } as const
export const NFTA_PAYLOAD = { DREG: 1, BASE: 2, OFFSET: 3, LEN: 4 } as const
export const NFTA_META = { DREG: 1, KEY: 2, SREG: 3 } as const
export const NFTA_CT = { DREG: 1, KEY: 2 } as const
export const NFTA_FIB = { DREG: 1, RESULT: 2, FLAGS: 3 } as const
export const NFTA_CMP = { SREG: 1, OP: 2, DATA: 3 } as const
export const NFTA_BITWISE = { SREG: 1, DREG: 2, LEN: 3, MASK: 4, XOR: 5 } as const
export const NFTA_LOOKUP = { SET: 1, SREG: 2, DREG: 3, SET_ID: 4, FLAGS: 5 } as const
export const NFTA_IMMEDIATE = { DREG: 1, DATA: 2 } as const
/** The kernel's name is NFTA_NG_…, short for number generator. */
export const NFTA_NG = { DREG: 1, MODULUS: 2, TYPE: 3, OFFSET: 4 } as const
export const NFTA_HASH = { SREG: 1, DREG: 2, LEN: 3, MODULUS: 4, SEED: 5, OFFSET: 6, TYPE: 7 } as const
export const NFTA_NAT = { TYPE: 1, FAMILY: 2, REG_ADDR_MIN: 3, REG_PROTO_MIN: 5, FLAGS: 7 } as const
export const NFTA_LIMIT = { RATE: 1, UNIT: 2, BURST: 3 } as const
export const NFTA_MASQ = { FLAGS: 1 } as const
export const NFTA_REJECT = { TYPE: 1, ICMP_CODE: 2 } as const
export const NFTA_COUNTER = { BYTES: 1, PACKETS: 2 } as const
export const NFTA_DYNSET = { SET_NAME: 1, SET_ID: 2, OP: 3, SREG_KEY: 4, TIMEOUT: 6 } as const
