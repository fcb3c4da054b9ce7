//! What a row of the unwind tables says of one frame.

use firstfault_handler::native::Registers;
use firstfault_handler::sys::MemoryPage;
use gimli::{
    CfaRule, Encoding, Evaluation, EvaluationResult, Register, RegisterRule, UnwindExpression,
    Value,
};

use crate::rule::{Rule, caller, numbers};
use crate::tables::{Reader, Tables};

/// Room for the rules of one function, without allocation: no function saves so many registers.
pub(crate) struct Storage;

impl<O: gimli::ReaderOffset> gimli::UnwindContextStorage<O> for Storage {
    type Rules = [(Register, RegisterRule<O>); 32];
    type Stack = [gimli::UnwindTableRow<O, Self>; 4];
}

impl<R: gimli::Reader> gimli::EvaluationStorage<R> for Storage {
    type Stack = [Value; 16];
    type ExpressionStack = [(R, R); 1];
    type Result = [gimli::Piece<R>; 1];
}

pub(crate) type Context = gimli::UnwindContext<usize, Storage>;
pub(crate) type Row = gimli::UnwindTableRow<usize, Storage>;

/// No expression that a compiler writes takes so many steps.
const STEPS_MAX: u32 = 256;

/// What a row of the tables says of a frame's caller.
pub(crate) enum Told {
    /// A rule that holds each time.
    Rule(Rule),
    /// What comes out this time.
    Caller(Registers),
}

/// Returns what the tables say, `None` where they say nothing that can be followed.
pub(crate) fn told(
    row: &Row,
    tables: &Tables,
    encoding: Encoding,
    registers: &Registers,
    memory: &mut MemoryPage,
) -> Option<Told> {
    if let Some(rule) = Rule::of_row(row) {
        return Some(Told::Rule(rule));
    }
    let mut sum = Sum {
        tables,
        encoding,
        registers,
        memory,
    };
    let end = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => {
            sum.register(*register)?.checked_add_signed(*offset)?
        }
        CfaRule::Expression(expression) => sum.evaluate(expression, None)?,
    };
    let mut value = |register: Register, same: u64| match row.register(register) {
        None | Some(RegisterRule::SameValue) => Some(same),
        Some(RegisterRule::Offset(offset)) => sum.memory.word(end.checked_add_signed(offset)?),
        Some(RegisterRule::ValOffset(offset)) => end.checked_add_signed(offset),
        Some(RegisterRule::Register(register)) => sum.register(register),
        Some(RegisterRule::Expression(expression)) => {
            let address = sum.evaluate(&expression, Some(end))?;
            sum.memory.word(address)
        }
        Some(RegisterRule::ValExpression(expression)) => sum.evaluate(&expression, Some(end)),
        Some(_) => None,
    };
    let address = value(numbers::RETURN, registers.link)?;
    let frame_pointer = value(numbers::FRAME_POINTER, registers.frame_pointer);
    Some(Told::Caller(caller(
        address,
        end,
        frame_pointer.unwrap_or(registers.frame_pointer),
    )))
}

/// What an expression is worked out of.
struct Sum<'a> {
    tables: &'a Tables,
    encoding: Encoding,
    registers: &'a Registers,
    memory: &'a mut MemoryPage,
}

impl Sum<'_> {
    fn register(&self, register: Register) -> Option<u64> {
        // On x86-64 the return address's column is the instruction pointer of the frame itself.
        let column = if cfg!(target_arch = "x86_64") {
            self.registers.program_counter
        } else {
            self.registers.link
        };
        match register {
            numbers::STACK_POINTER => Some(self.registers.stack_pointer),
            numbers::FRAME_POINTER => Some(self.registers.frame_pointer),
            numbers::RETURN => Some(column),
            _ => None,
        }
    }

    fn evaluate(
        &mut self,
        expression: &UnwindExpression<usize>,
        first: Option<u64>,
    ) -> Option<u64> {
        let code = expression.get(&self.tables.frames).ok()?.0;
        let mut evaluation = Evaluation::<Reader, Storage>::new_in(code, self.encoding);
        evaluation.set_max_iterations(STEPS_MAX);
        if let Some(first) = first {
            evaluation.set_initial_value(first);
        }
        let mut result = evaluation.evaluate().ok()?;
        loop {
            result = match result {
                EvaluationResult::Complete => break,
                EvaluationResult::RequiresRegister { register, .. } => {
                    let value = self.register(register)?;
                    evaluation
                        .resume_with_register(Value::Generic(value))
                        .ok()?
                }
                EvaluationResult::RequiresMemory {
                    address, size: 8, ..
                } => {
                    let value = self.memory.word(address)?;
                    evaluation.resume_with_memory(Value::Generic(value)).ok()?
                }
                _ => return None,
            };
        }
        evaluation.value_result()?.to_u64(u64::MAX).ok()
    }
}
